"""Translate and summarize: learned by heart, searched, measured with signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.evaluation import evaluate_task
from anyformer.tasks.job import Job
from anyformer.tasks.translate import training_chunks
from tests.tasks.learn import begin, learn, listed

PAIRS = {
    "the cat sleeps": "die Katze schläft",
    "a dog barks": "ein Hund bellt",
    "two birds sing in a tree": "zwei Vögel singen in einem Baum",
    "it rains": "es regnet",
}
ROWS = listed(*({"source": a, "target": b} for a, b in PAIRS.items()))
BATCH = BatchConfig(rows=4)


@pytest.fixture(scope="module")
def trained() -> Any:
    task = begin("translate", "transformer-tiny", ROWS, vocab_size=300, options={"num_beams": 3})
    learn(task, ROWS, 200, batch=BATCH)
    return task


def test_learned_saved_and_loaded(trained: Any, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    figures = trained.evaluate(ROWS)
    assert figures["bleu"] == pytest.approx(100) and str(figures["signature"]).startswith("nrefs:1|case:mixed|eff:no")
    assert figures["loss"] < 0.1 and trained.metric == "bleu"
    trained.save(tmp_path / "x")
    translate = af.task("translate", tmp_path / "x")
    assert translate.settings.num_beams == 3
    answers = translate(list(PAIRS))
    assert [str(answer) for answer in answers] == list(PAIRS.values())
    one = translate("it rains", num_beams=1)
    assert one.text == "es regnet" and one.source == "it rains" and len(one.ids) > 0
    assert translate([]) == []
    short = af.task("translate", tmp_path / "x", num_beams=1, max_new_tokens=2)
    assert len(short("the cat sleeps").ids) == 2 and len(short("the cat sleeps", max_new_tokens=3).ids) == 3
    with pytest.raises(af.InputError, match='"max_tokens"'):
        short("it rains", max_tokens=3)
    with pytest.raises(af.InputError, match="the source is int"):
        translate(3)


def test_measured_by_length(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `eval`, where there are texts enough; while a model learns nobody wants to see it."""
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr("anyformer.tasks.translate.ENOUGH", 4)
    assert "by_length" not in trained.evaluate(ROWS)
    trained.save(tmp_path / "x")
    (tmp_path / "x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS.items()))
    said = str(evaluate_task("translate", tmp_path / "x", tmp_path / "x.tsv").metrics["by_length"])
    assert [part.split(":")[0] for part in said.split(", ")] == ["2 words", "3", "4-6"]
    monkeypatch.setattr("anyformer.tasks.translate.ENOUGH", 5)
    assert "by_length" not in evaluate_task("translate", tmp_path / "x", tmp_path / "x.tsv").metrics


def test_blank_texts_have_blank_answers(trained: Any) -> None:
    """In a list too, where the others are answered as they are alone; white space around a text changes nothing."""
    answers = trained(["", "it rains", " \n", "\ta dog barks "])
    assert [str(answer) for answer in answers] == ["", "es regnet", "", "ein Hund bellt"]
    assert str(trained("")) == "" and trained("  ").ids == ()


def test_a_text_is_read_sentence_by_sentence(trained: Any, tmp_path: Path) -> None:
    """Where the folder says so: lines stay lines, what has no word stays as it is, and rows are evaluated whole."""
    trained.save(tmp_path / "x")
    translate = af.task("translate", tmp_path / "x", sentences=True)
    text = "it rains. the cat sleeps? a dog barks\n\n \U0001f600 \nit rains"
    alone = {part: str(translate(part)) for part in ("it rains.", "the cat sleeps?", "a dog barks", "it rains")}
    whole, blank, other = translate([text, "", "it rains"])
    first = " ".join(alone[part] for part in ("it rains.", "the cat sleeps?", "a dog barks"))
    assert str(whole) == f"{first}\n\n\U0001f600\n{alone['it rains']}" and whole.source == text.strip()
    assert [part.source for part in whole.sentences] == [*list(alone)[:3], "\U0001f600", "it rains"]
    assert whole.ids == tuple(i for part in whole.sentences for i in part.ids)
    assert str(blank) == "" and other.text == "es regnet" and other.sentences == ()
    rows = listed({"source": "it rains. a dog barks", "target": "es regnet"})
    plain = af.task("translate", tmp_path / "x")
    ours, theirs = translate.evaluate(rows), plain.evaluate(rows)
    for name in ("loss", "perplexity"):  # two copies of one model may differ in the last bit
        assert ours.pop(name) == pytest.approx(theirs.pop(name), rel=1e-6)
    assert ours == theirs and plain(text).sentences == ()
    translate.save(tmp_path / "y")
    assert af.task("translate", tmp_path / "y").settings.sentences


def test_a_source_that_is_cut_is_said(recwarn: pytest.WarningsRecorder) -> None:
    task = begin(
        "translate", "transformer-tiny", ROWS, {"max_target_length": 4, "num_beams": 1}, vocab_size=300, max_length=9
    )
    task("it rains")
    assert not recwarn
    task(["it rains", "a dog barks " * 9])
    task(["a dog barks " * 9] * 2)
    tokens = len(task.tokenizer.encode(("a dog barks " * 9).strip()))
    start = "The model's maximum length is 9 tokens, so"
    assert [str(one.message) for one in recwarn] == [
        f"{start} a text of {tokens} tokens was truncated.",
        f"{start} 2 texts were truncated.",
    ]


@pytest.mark.parametrize(
    "recipe", ["t5-tiny", "bart-tiny", "encoder-decoder-tiny", "luong-tiny", "bahdanau-tiny", "sutskever-tiny"]
)
def test_every_kind_of_encoder_decoder(recipe: str) -> None:
    """Built for the vocabulary at hand; its loss falls, and its own padding changes nothing."""
    if recipe not in af.recipes():
        pytest.skip(f"there is no {recipe}")
    task = begin("translate", recipe, ROWS, vocab_size=300)
    losses = learn(task, ROWS, 40, batch=BATCH)
    assert losses[-1] < 0.6 * losses[0]
    job = Job(task, ROWS, batch=BATCH, data=DataSettings(cache=False))
    whole = task.loss(job.collate(range(4), torch.Generator()))
    parts = [task.loss(job.collate([i], torch.Generator())) for i in range(4)]
    assert float(sum(part.total.detach() for part in parts)) == pytest.approx(float(whole.total.detach()), rel=1e-4)
    assert sum(int(part.count) for part in parts) == int(whole.count)
    assert str(task("it rains", num_beams=2)) is not None


def test_the_loss_is_teacher_forcing(trained: Any) -> None:
    """As many labels as target tokens with their end; equal to the model's own loss; smoothed as PyTorch does it."""
    job = Job(trained, ROWS, batch=BATCH, data=DataSettings(cache=False))
    batch = job.collate([0, 1, 2, 3], torch.Generator())
    tokens = sum(len(trained.tokenizer.encode(text)) for text in PAIRS.values())
    assert int(job.loss(batch).count) == tokens
    out = trained.model(**batch)
    assert float(job.loss(batch).total.detach()) / tokens == pytest.approx(float(out.loss.detach()), rel=1e-5)
    trained.smoothing = 0.1
    flat = out.logits.flatten(0, 1), batch["labels"].flatten()
    smooth = F.cross_entropy(*flat, ignore_index=-100, label_smoothing=0.1, reduction="sum")
    assert float(job.loss(batch).total.detach()) == pytest.approx(float(smooth.detach()), rel=1e-5)
    trained.smoothing = 0.0


def test_long_texts_are_cut(tmp_path: Path) -> None:
    """A source keeps its end; a target that is cut has none, so that nobody learns to stop there."""
    task = begin("translate", "transformer-tiny", ROWS, {"max_target_length": 4}, vocab_size=300, max_length=5)
    example = task.example({"source": "a dog barks " * 9, "target": "ein Hund bellt " * 9})
    end = task.tokenizer.end_id
    assert len(example["input_ids"]) == 5 and example["input_ids"][-1] == end
    assert len(example["labels"]) == 4 and end not in example["labels"]
    assert task.example({"source": "a", "target": "e"})["labels"][-1] == end


def test_files(tmp_path: Path) -> None:
    read = find("translate").read
    (tmp_path / "x.en").write_text("one\ntwo\n")
    (tmp_path / "x.de").write_text("eins\nzwei\n")
    (tmp_path / "x.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "y.tsv").write_text("en\tde\none\teins\ntwo\tzwei\n")
    expected = [{"source": "one", "target": "eins"}, {"source": "two", "target": "zwei"}]
    for paths in ([tmp_path / "x.en", tmp_path / "x.de"], tmp_path / "x.tsv", tmp_path / "y.tsv"):
        assert list(read(paths)) == expected


def test_summaries(tmp_path: Path) -> None:
    rows = listed(
        {"source": "Ann: I baked cookies.\nBen: Sure!", "target": "Ann baked cookies."},
        {"source": "Tom: It rains.\nEva: Stay at home.", "target": "Tom stays at home."},
    )
    task = begin("summarize", "transformer-tiny", rows, {"num_beams": 1}, vocab_size=300)
    learn(task, rows, 120, batch=BATCH)
    figures = task.evaluate(rows)
    assert figures["rougeL"] == pytest.approx(100) and "stem:no" in str(figures["signature"])
    task.save(tmp_path / "x")
    assert str(af.task("summarize", tmp_path / "x")(rows[0]["source"])) == "Ann baked cookies."


def test_a_summary_does_not_say_the_same_for_ever() -> None:
    """Unless it is allowed to, or the folder has settings of its own for generation."""
    song = "la di " * 8
    rows = listed({"source": "sing", "target": song.strip()}, {"source": "stop", "target": "no"})
    task = begin("summarize", "transformer-tiny", rows, {"num_beams": 1, "no_repeat_ngram_size": 0}, vocab_size=300)
    learn(task, rows, 120, batch=BATCH)
    assert str(task("sing")) == song.strip()
    careful = type(task)(task.model, task.tokenizer, task.settings.replace(no_repeat_ngram_size=None))
    ids = careful("sing").ids
    runs = [ids[i : i + 4] for i in range(len(ids) - 3)]
    assert len(ids) >= 4 and len(set(runs)) == len(runs)
    assert str(careful("sing", no_repeat_ngram_size=0)) == song.strip()
    task.model.origin.generation = {"num_beams": 1}
    assert str(careful("sing")) == song.strip()
    with pytest.raises(af.ConfigError, match="no_repeat_ngram_size is -1; it must be 0 or more"):
        task.settings.replace(no_repeat_ngram_size=-1)


def test_wrong_models(tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match=r'"gpt2-tiny" .*bahdanau'):
        begin("translate", "gpt2-tiny", ROWS)
    task = begin("classify-text", "bert-tiny", listed({"text": "a", "label": "x"}, {"text": "b", "label": "y"}))
    task.save(tmp_path / "x")
    with pytest.raises(af.FolderError, match="x holds a bert model"):
        af.task("translate", tmp_path / "x")


def test_sources_of_several_kinds_are_joined(tmp_path: Path) -> None:
    """Two parallel files and a TSV without a header: one after the other, each row with its place."""
    (tmp_path / "a.en").write_text("a cat\na dog\n")
    (tmp_path / "a.de").write_text("eine Katze\nein Hund\n")
    (tmp_path / "b.tsv").write_text("a horse\tein Pferd\n")
    side, table = f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}", str(tmp_path / "b.tsv")
    rows = find("translate").read([side, table])
    assert [row["target"] for row in rows] == ["eine Katze", "ein Hund", "ein Pferd"]
    assert rows.location(2) == f"{tmp_path / 'b.tsv'}, line 1"
    both = find("translate").read([str(tmp_path / "a.en"), str(tmp_path / "a.de")])
    assert [row["source"] for row in both] == ["a cat", "a dog"]
    assert len({rows.fingerprint, both.fingerprint, find("translate").read([table, side]).fingerprint}) == 3


SAYINGS = ("the early bird catches the worm", "a rolling stone gathers no moss", "still waters run deep in spring")
RAIN = {"source": "it rains", "target": "es regnet den ganzen Tag"}


def with_gaps(**options: Any) -> Any:
    """Texts beside themselves, and one pair."""
    rows = listed(*({"source": text, "target": text} for text in SAYINGS), RAIN)
    return begin("translate", "transformer-tiny", rows, {"infilling": 0.3, **options}, vocab_size=300), rows


def test_gaps_are_in_texts_that_stand_on_both_sides() -> None:
    task, rows = with_gaps()
    chosen = task.gather(task.prepare(rows), range(4))

    def sources(seed: int) -> list[list[int]]:
        batch = task.collate(chosen, torch.Generator().manual_seed(seed))
        assert [row[row >= 0].tolist() for row in batch["labels"]] == [list(one["labels"]) for one in chosen]
        assert int(batch["attention_mask"].sum(dim=1).max()) == batch["input_ids"].shape[1]
        whole = zip(batch["input_ids"], batch["attention_mask"], strict=True)
        return [ids[mask.bool()].tolist() for ids, mask in whole]

    first = sources(0)
    assert sources(0) == first != sources(1)
    seen = [sources(seed) for seed in range(40)]
    for i, example in enumerate(chosen):
        before = list(example["input_ids"])
        for source in (found[i] for found in seen):
            assert source[-1] == before[-1] == task.end
            rest = iter(before)
            assert all(token in rest for token in source if token != task.mark)  # what is left, in order
        spoiled = [found[i] for found in seen if found[i] != before]
        assert len(spoiled) > 20 if list(example["labels"]) == before else not spoiled
        assert all(task.mark in source for source in spoiled)


def test_texts_with_gaps_come_in_pieces() -> None:
    """Of some length each; what is put together again is the text, and a piece knows its row."""
    text = "One two. Three four five! Six?\nSeven eight nine ten eleven. " * 30
    rows = listed({"source": "it rains", "target": "es regnet"}, {"source": text, "target": text})
    task = begin("translate", "transformer-tiny", rows, {"infilling": 0.3}, vocab_size=300)
    pieces = training_chunks(text)
    assert (
        " ".join(pieces).split() == text.split()
        and "Six?\nSeven" in "".join(pieces)
        and pieces == training_chunks(text)
    )
    sizes = sorted({len(piece.split()) for piece in pieces})
    assert sizes[0] <= 5 and 32 < sizes[-1] <= 64 and len(pieces) > 5
    examples = task.prepare(rows)
    assert [examples.row(i) for i in range(len(examples))] == [0] + [1] * len(pieces)
    short = [i for i, piece in enumerate(pieces) if len(piece.split()) < 12]
    found = [task.tokenizer.decode(examples[1 + i]["labels"].tolist()).strip() for i in short]
    assert [text.split() for text in found] == [pieces[i].split() for i in short] and short
    assert len(begin("translate", "transformer-tiny", rows, vocab_size=300).prepare(rows)) == 2


def test_texts_with_gaps_are_measured_by_their_loss() -> None:
    """Writing a text again says nothing; pairs beside them are written as ever."""
    pytest.importorskip("sacrebleu")
    task, rows = with_gaps(num_beams=1)
    assert (task.metric, task.larger_is_better) == ("loss", False)
    assert set(task.evaluate(rows[:3])) == {"loss", "perplexity"}
    assert task.evaluate(rows[:3]) == task.evaluate(rows[:3])
    written: list[str] = []
    task.write = lambda texts, *given, **more: written.extend(texts) or [RAIN["target"]] * len(texts)
    found = task.evaluate(rows)
    assert found["bleu"] == pytest.approx(100) and found["written"] == 1 and written == ["it rains"]
    summarize = begin("summarize", "transformer-tiny", rows, {"infilling": 0.3}, vocab_size=300)
    assert summarize.metric == "loss" and "rougeL" not in summarize.evaluate(rows[:3])


def test_a_gap_is_filled(tmp_path: Path) -> None:
    """Learned by heart; the folder then learns another task without gaps."""
    rows = listed(*({"source": text, "target": text} for text in SAYINGS))
    task = begin("translate", "transformer-tiny", rows, {"infilling": 0.3, "num_beams": 1}, vocab_size=300)
    learn(task, rows, 600, batch=BATCH)
    task.save(tmp_path / "x")
    fill = af.task("translate", tmp_path / "x")
    assert str(fill("the early <unk> the worm")) == SAYINGS[0]
    assert str(fill("<unk> run deep in spring")) == SAYINGS[2]
    further = begin("summarize", tmp_path / "x", ROWS)
    assert not further.settings.infilling and further.metric == "rougeL"


def test_rows_without_a_piece(tmp_path: Path) -> None:
    """Blank lines, and those between documents, give none; where there is nothing else that is said."""
    words = "still waters run deep\n\n<|endoftext|>\n  \nthe early bird\n"
    (tmp_path / "a.txt").write_text(words)
    (tmp_path / "blank.txt").write_text("\n\n")
    sides = [f"{tmp_path}/{name},{tmp_path}/{name}" for name in ("a.txt", "blank.txt")]
    rows, blank = (find("translate").read(one) for one in sides)
    task = begin("translate", "transformer-tiny", rows, {"infilling": 0.3}, vocab_size=300)
    examples = task.prepare(rows)
    assert [rows.location(examples.row(i)) for i in range(len(examples))] == [rows.location(0), rows.location(4)]
    with pytest.raises(af.DataError, match="no rows"):
        task.evaluate(blank)


def test_a_long_sentence_is_cut_at_words() -> None:
    text = " ".join(str(n) for n in range(500))
    pieces = training_chunks(text)
    assert " ".join(pieces) == text and max(len(piece.split()) for piece in pieces) <= 64


@pytest.mark.parametrize("kind", ["bert", "mask"])
def test_what_frames_a_text_stays(kind: str) -> None:
    """[CLS] and [SEP] of a tokenizer that has them; a mask where there is one is the mark."""
    rows = listed(*({"source": text, "target": text} for text in SAYINGS))
    task = begin("translate", "transformer-tiny", rows, {"infilling": 0.5}, vocab_size=300)
    more = {"bert": True} if kind == "bert" else {"end": True, "special": ["[MASK]"]}
    tokenizer = af.Tokenizer.train(iter(SAYINGS), kind="bpe", vocab_size=300, progress=False, **more)
    framed = type(task)(task.model, tokenizer, task.settings)
    assert framed.mark == tokenizer.mask_id != task.mark == task.tokenizer.unknown_id
    chosen = framed.gather(framed.prepare(rows), range(3))
    for seed in range(20):
        batch = framed.collate(chosen, torch.Generator().manual_seed(seed))
        for ids, mask, example in zip(batch["input_ids"], batch["attention_mask"], chosen, strict=True):
            left = ids[mask.bool()].tolist()
            assert left[-1] == example["input_ids"][-1]
            assert kind != "bert" or left[0] == tokenizer.start_id


def test_what_gaps_cannot_be() -> None:
    with pytest.raises(af.ConfigError, match=r"infilling is 0\.8; it must be from 0 to 0\.75"):
        with_gaps(infilling=0.8)
    with pytest.raises(af.ConfigError, match=r"task\.prefix"):
        with_gaps(prefix="summarize: ")
    with pytest.raises(af.DataError, match=r"task\.infilling .*texts\.txt,texts\.txt"):
        begin("summarize", "transformer-tiny", ROWS, {"infilling": 0.3}, vocab_size=300)
    task, rows = with_gaps()
    other = begin("translate", "transformer-tiny", rows, vocab_size=300)
    other.tokenizer.unknown_id = None
    with pytest.raises(af.InputError, match=r"task\.infilling .*token"):
        type(task)(other.model, other.tokenizer, task.settings)


def test_two_passes_agree(trained: Any) -> None:
    """With `task.r_drop` the loss is the mean of two passes' and the weighed divergence between them, over the places
    that count; an evaluation passes once."""
    job = Job(trained, ROWS, batch=BATCH, data=DataSettings(cache=False))
    batch = job.collate(job.batches(0)[0], torch.Generator())
    labels, plain = batch["labels"], trained.settings
    assert (labels == -100).any()
    trained.settings = plain.replace(r_drop=2.0)
    try:
        once = float(job.loss(batch).total)
        trained.model.train()
        torch.manual_seed(0)
        loss = job.loss(batch)
        torch.manual_seed(0)
        with torch.no_grad():
            one, other = (trained.scores(batch)[labels != -100].double() for _ in range(2))
    finally:
        trained.settings = plain
        trained.model.eval()
    p, q = one.softmax(dim=1), other.softmax(dim=1)
    apart = (F.kl_div(q.log(), p, reduction="sum") + F.kl_div(p.log(), q, reduction="sum")) / 2
    wanted = labels[labels != -100]
    both = sum(F.cross_entropy(logits, wanted, reduction="sum") for logits in (one, other)) / 2
    assert apart > 1e-6 and int(loss.count) == len(wanted)
    assert float(loss.total) == pytest.approx(float(both + 2 * apart), rel=1e-4)
    assert once == pytest.approx(float(job.loss(batch).total), rel=1e-6)
