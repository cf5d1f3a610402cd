"""Language models, masked words, next sentences and ELECTRA: what stands in a batch, what is learned, what it says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.rows import Rows, read
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.build import load_meta_for
from anyformer.tasks.job import Job
from anyformer.tasks.stream import TokenWindows
from tests.tasks.learn import awake, begin, learn, quiet

TEXT = "".join(f"the cat number {i} sat on mat {i % 7}\n" for i in range(40))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = tmp_path_factory.mktemp("data") / "x.txt"
    path.write_text(TEXT)
    return find("generate").read(path)


def test_windows_cover_the_text_once() -> None:
    """Each epoch other windows of one length, none overlapping, hardly anything left out."""
    plan = TokenWindows(1000, 64, 0, BatchConfig(rows=4), seed=1)
    for epoch in range(4):
        starts = np.sort(np.concatenate(plan.global_batches(epoch)))
        assert (np.diff(starts) == 64).all() and starts[0] >= 0 and starts[-1] + 64 <= 1000 and len(starts) >= 14
        assert np.array_equal(np.concatenate(plan.global_batches(epoch)), np.concatenate(plan.global_batches(epoch)))
    assert len({int(np.min(np.concatenate(plan.global_batches(epoch)))) for epoch in range(4)}) > 1
    plain = TokenWindows(1000, 64, 0, BatchConfig(rows=4, shuffle=False), seed=1)
    assert np.concatenate(plain.global_batches(3)).tolist() == list(range(0, 960, 64))
    with pytest.raises(af.DataError, match=r"\b50 .*\b64\b.*data\.max_length"):
        TokenWindows(50, 64, 0, BatchConfig(), 0)


def test_characters_of_a_text(rows: Rows) -> None:
    """The stream is the file, character by character; labels are one ahead; a window knows its line."""
    task = begin("generate", "gpt2-tiny", rows, kind="char", max_length=16)
    examples = task.prepare(rows)
    flat = task.flat(examples)
    assert task.tokenizer.decode(flat.tolist()) == TEXT and len(task.tokenizer) == len(set(TEXT)) + 3
    job = Job(task, rows, batch=BatchConfig(rows=2), data=DataSettings(cache=False))
    batch = job.collate([0, 30], torch.Generator())
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 16)
    assert task.tokenizer.decode(batch["labels"][1]) == TEXT[31:47]
    assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    assert job.where(0).endswith("line 1") and job.where(30).endswith("line 2") and job.padding == 0
    loss = job.loss(batch)
    direct = torch.nn.functional.cross_entropy(
        task.model(input_ids=batch["input_ids"]).logits.flatten(0, 1), batch["labels"].flatten()
    )
    assert int(loss.count) == 32 and float(loss.total.detach()) / 32 == pytest.approx(float(direct.detach()), rel=1e-5)


def test_a_language_model_learns_and_writes(rows: Rows, tmp_path: Path) -> None:
    task = begin("generate", "gpt2-tiny", rows, kind="char", max_length=32)
    before = task.evaluate(rows)
    assert before["loss"] == pytest.approx(math.log(len(task.tokenizer)), rel=0.1)
    learn(task, rows, 150, batch=BatchConfig(rows=8))
    after = task.evaluate(rows)
    assert after["loss"] < 0.5 and after["perplexity"] == pytest.approx(math.exp(float(after["loss"])))
    assert after["bits_per_character"] == pytest.approx(float(after["loss"]) / math.log(2), rel=0.02)
    task.save(tmp_path / "x")
    write = af.task("generate", tmp_path / "x", max_new_tokens=12)
    assert str(write("the cat num")).startswith("ber ")
    assert write.evaluate(rows) == pytest.approx(after)


def test_a_text_of_unknown_letters_says_so(rows: Rows, tmp_path: Path) -> None:
    """Its loss would be a good one: unknown after unknown is easily said."""
    task = begin("generate", "gpt2-tiny", rows, kind="char", max_length=16)
    (tmp_path / "x.txt").write_text("東京は日本の首都です。" * 5)
    assert "unknown" not in task.evaluate(rows)
    assert task.evaluate(read(tmp_path / "x.txt"))["unknown"] > 0.9


def test_pieces_and_documents(tmp_path: Path) -> None:
    """Lines run on with their newlines; a line <|endoftext|> ends a document; rows of a table are documents."""
    (tmp_path / "x.txt").write_text("one two\nthree\n<|endoftext|>\nfour\n" * 30)
    task = begin("generate", "gpt2-tiny", find("generate").read(tmp_path / "x.txt"), vocab_size=300, max_length=16)
    flat = task.flat(task.prepare(find("generate").read(tmp_path / "x.txt")))
    end = task.tokenizer.end_id
    assert (flat == end).sum() == 30
    assert task.tokenizer.decode(flat.tolist()) == "one two\nthree\nfour\n" * 30
    (tmp_path / "x.jsonl").write_text('{"text": "one\\ntwo"}\n{"text": "three"}\n')
    rows = find("generate").read(tmp_path / "x.jsonl")
    task = begin("generate", "gpt2-tiny", rows, vocab_size=300, max_length=4)
    ids = task.flat(task.prepare(rows)).tolist()
    assert ids.count(end) == 2 and ids[-1] == end and "\n" in task.tokenizer.decode(ids)
    words = begin("generate", "gpt2-tiny", find("generate").read(tmp_path / "x.txt"), kind="word", max_length=8)
    assert words.flat(words.prepare(find("generate").read(tmp_path / "x.txt")))[:6].tolist().count(end) == 3


@pytest.mark.parametrize("recipe", ["transformer-xl-tiny", "mamba-tiny", "llama-tiny"])
def test_memory_is_read_before_the_window(recipe: str, rows: Rows) -> None:
    """The loss with memory is that of the same tokens after their context; no gradient goes into the context."""
    task = begin("generate", recipe, rows, {"memory": 24}, kind="char", max_length=16)
    job = Job(task, rows, batch=BatchConfig(rows=2), data=DataSettings(cache=False))
    batch = job.collate([24, 100], torch.Generator())
    assert batch["context_ids"].shape == (2, 24) and batch["input_ids"].shape == (2, 16)
    flat = task.flat(job.examples)
    assert batch["context_ids"][1].tolist() == flat[76:100].tolist() and min(np.concatenate(job.batches(1))) >= 24
    loss = job.loss(batch)
    with torch.no_grad():
        whole = task.model(input_ids=torch.cat([batch["context_ids"], batch["input_ids"]], dim=1)).logits[:, 24:]
        expected = torch.nn.functional.cross_entropy(whole.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    assert float(loss.total.detach()) == pytest.approx(float(expected), rel=1e-4)
    loss.total.backward()


def test_masked_words(tmp_path: Path) -> None:
    """Whole windows between [CLS] and [SEP], 15% of the rest to be said; learned, and then said."""
    (tmp_path / "x.txt").write_text(
        "the cat drinks milk\na dog eats meat\nmy bird wants seed\none cow chews grass\n" * 25
    )
    rows = find("fill-mask").read(tmp_path / "x.txt")
    model = quiet("roformer-tiny")
    task = awake(begin("fill-mask", "roformer-tiny", rows, vocab_size=200, max_length=18, model=model))
    assert task.model.config.head == "masked"
    job = Job(task, rows, batch=BatchConfig(rows=8), data=DataSettings(cache=False))
    batch = job.collate(job.batches(0)[0], torch.Generator().manual_seed(0))
    assert batch["input_ids"].shape == (8, 18)
    assert (batch["input_ids"][:, 0] == task.tokenizer.start_id).all()
    assert (batch["input_ids"][:, -1] == task.tokenizer.separator_id).all()
    chosen = batch["labels"] != -100
    assert 5 < int(chosen.sum()) < 40 and not chosen[:, [0, -1]].any()
    assert int(job.loss(batch).count) == int(chosen.sum())
    other = job.collate(job.batches(0)[0], torch.Generator().manual_seed(1))
    assert not torch.equal(other["labels"], batch["labels"])
    learn(task, rows, 250, lr=1e-3, batch=BatchConfig(rows=16))
    figures = task.evaluate(rows)
    assert figures["accuracy"] > 0.9 and figures == task.evaluate(rows)
    task.save(tmp_path / "x")
    fill = af.task("fill-mask", tmp_path / "x")
    answer = fill("meat my bird wants [MASK] one cow")
    assert str(answer) == "meat my bird wants seed one cow" and answer.choices[0][0][0] == "seed"
    assert len(answer.choices[0]) == 5
    with pytest.raises(af.InputError, match=r'"nothing to do" .*\[MASK\]'):
        fill("nothing to do")


DOCUMENTS = "\n\n".join(
    "\n".join(f"{name} line {i} of {name}" for i in range(6)) for name in ("ant", "bee", "cow", "dog")
)


def test_next_sentences(tmp_path: Path) -> None:
    """Half of the second parts follow, the others are of another document; types tell the two apart."""
    (tmp_path / "x.txt").write_text(DOCUMENTS)
    rows = find("fill-mask").read(tmp_path / "x.txt")
    options = {"next_sentence": True, "mask_prob": 0.01}
    model = quiet("bert-tiny")
    task = awake(begin("fill-mask", "bert-tiny", rows, options, vocab_size=200, max_length=32, model=model))
    job = Job(task, rows, batch=BatchConfig(rows=50), data=DataSettings(cache=False))
    (numbers,) = job.batches(0)
    labels, seen = [], 0
    for seed in range(20):
        batch = job.collate(numbers, torch.Generator().manual_seed(seed))
        for ids, types, label in zip(
            batch["input_ids"], batch["token_type_ids"], batch["next_sentence_label"], strict=True
        ):
            text = task.tokenizer.decode(ids[types == 0]), task.tokenizer.decode(ids[types == 1])
            names = [{name for name in ("ant", "bee", "cow", "dog") if name in side} for side in text]
            if all(len(side) == 1 for side in names):
                seen += 1
                assert (names[0] == names[1]) is (int(label) == 0), text
            assert len(ids) <= 32
            labels.append(int(label))
    assert seen > 50 and 0.3 < sum(labels) / len(labels) < 0.7
    assert job.where(int(numbers[0])).split(", ")[1].startswith("line ")
    loss = job.loss(batch)
    assert float(loss.parts["words"] + loss.parts["pairs"]) == pytest.approx(float(loss.total.detach()), rel=1e-5)
    assert 0 <= float(task.evaluate(rows)["next_sentence_accuracy"]) <= 1


def test_next_sentences_are_learned(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(DOCUMENTS)
    rows = find("fill-mask").read(tmp_path / "x.txt")
    task = awake(
        begin(
            "fill-mask",
            "bert-tiny",
            rows,
            {"next_sentence": True},
            vocab_size=200,
            model=quiet("bert-tiny"),
            max_length=32,
        )
    )
    learn(task, rows, 200, lr=1e-3, batch=BatchConfig(rows=50))
    job = Job(task, rows, batch=BatchConfig(rows=50), data=DataSettings(cache=False))
    losses = [job.loss(job.collate(job.batches(0)[0], torch.Generator().manual_seed(seed))) for seed in range(10)]
    assert sum(float(loss.parts["pairs"] / loss.count) for loss in losses) / 10 < 0.3 < math.log(2)


def test_documents_that_are_too_few(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(DOCUMENTS)
    task = begin("fill-mask", "bert-tiny", find("fill-mask").read(tmp_path / "x.txt"), {"next_sentence": True})
    (tmp_path / "y.txt").write_text("one document\nand no more\n")
    with pytest.raises(af.DataError, match=r"task\.next_sentence "):
        Job(task, read(tmp_path / "y.txt"), data=DataSettings(cache=False))


def test_electra(rows: Rows, tmp_path: Path) -> None:
    """Both models learn; the loss adds up over batches; the discriminator is what is taken further."""
    task = begin("electra", "electra-joint-tiny", rows, vocab_size=200, max_length=32)
    losses = learn(task, rows, 60, batch=BatchConfig(rows=8))
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    figures = task.evaluate(rows)
    assert figures["generator_loss"] < 4 and figures["accuracy"] > 0.8 and figures == task.evaluate(rows)
    task.save(tmp_path / "x")
    doubts = af.task("electra", tmp_path / "x")("the cat number 3 sat on mat 3")
    assert len(doubts.pieces) == len(doubts.scores) >= 8 and "cat" in str(doubts)
    labeled = find("classify-text").fit(read_table(tmp_path))
    sketched = load_meta_for(
        tmp_path / "x", find("classify-text").fits
    )  # what `anyformer train` looks at before it loads
    assert sketched.family == "electra" and sketched.device.type == "meta"
    fine = begin("classify-text", tmp_path / "x", labeled)
    ours, theirs = task.model.state_dict(), fine.model.state_dict()
    assert torch.equal(theirs["encoder.inputs.words.weight"], ours["discriminator.inputs.text.words.weight"])
    learn(fine, labeled, 60)
    assert fine.evaluate(labeled)["accuracy"] == 1.0


def read_table(folder: Path) -> Rows:
    (folder / "t.tsv").write_text("text\tlabel\nthe cat\ta\nmat 3\tb\nsat on\ta\nnumber 7\tb\n")
    return read(folder / "t.tsv", names=("text",))


def test_a_discriminator_that_begins_as_the_generator(rows: Rows, tmp_path: Path) -> None:
    """Its layers and its way in are the generator's then, to the bit; the two go on apart."""
    tiny = af.build("electra-joint-tiny").config
    model = tiny.replace(generator=tiny.discriminator.replace(head="masked"), weight=0.0)
    task = begin("electra", "electra-joint-tiny", rows, vocab_size=200, max_length=32, model=model)
    learn(task, rows, 5, batch=BatchConfig(rows=8))
    task.save(tmp_path / "x")
    further = begin(
        "electra", tmp_path / "x", rows, {"from_generator": True}, model=task.model.config.replace(weight=50.0)
    )
    held = further.model.state_dict()
    moved = {
        "generator.inputs.": "discriminator.inputs.text.",
        "generator.": "discriminator.",
    }
    names = [name for name in held if name.startswith("generator.")]
    theirs = [next(name.replace(old, new) for old, new in moved.items() if old in name) for name in names]
    assert len(names) > 25 and all(torch.equal(held[a], held[b]) for a, b in zip(names, theirs, strict=True))
    learn(further, rows, 5, batch=BatchConfig(rows=8))
    name, after = "blocks.0.self.qkv.weight", further.model.state_dict()
    assert not torch.equal(after[f"generator.{name}"], after[f"discriminator.{name}"])
    begin("electra", "electra-joint-tiny", rows, vocab_size=200, max_length=32).save(tmp_path / "y")
    with pytest.raises(af.ConfigError, match="generator of the discriminator's size"):
        begin("electra", tmp_path / "y", rows, {"from_generator": True})
    shared = model.replace(tied="all", weight=50.0)
    begin("electra", "electra-joint-tiny", rows, vocab_size=200, max_length=32, model=shared).save(tmp_path / "z")
    with pytest.raises(af.ConfigError, match=r"task\.from_generator.*model\.tied=vectors"):
        begin("electra", tmp_path / "z", rows, {"from_generator": True})
