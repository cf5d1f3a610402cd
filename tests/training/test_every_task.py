"""Every task through the command: trained, cut off, continued to the same bits, and run from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from anyformer.tasks import TASKS
from anyformer.training.trainer import Trainer
from tests.training import clip_files as clips
from tests.training import picture_files as pictures
from tests.training import sound_files as sounds
from tests.training.toy import DeadError

WORDS = "cat dog cow bee ant hen fox owl".split()
SETTINGS = {"steps": 6, "save_every": 3, "eval_every": 3, "log_every": 1, "batch_size": 4, "device": "cpu"}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad() -> str:
    paragraphs = []
    for i, word in enumerate(WORDS * 4):
        context = f"the {word} sat on the mat number {i}"
        answers = [{"text": word, "answer_start": 4}]
        paragraphs.append({"context": context, "qas": [{"id": str(i), "question": "who sat", "answers": answers}]})
    return json.dumps({"data": [{"title": "animals", "paragraphs": paragraphs}]})


TEXT = "".join(f"the {a} sat on the {b}\nand then it slept\n\n" for a in WORDS for b in WORDS for _ in range(3))
PAIRS = "source\ttarget\n" + "".join(f"one {word} there\tein {word} dort\n" for word in WORDS * 2)

# Task -> recipe, file, its content (or that of several files by name), one thing to run it on, settings.
CASES: dict[str, tuple[str, str, str | Mapping[str, bytes], Any, dict[str, Any]]] = {
    "generate": ("gpt2-tiny", "x.txt", TEXT, "the cat", {"tokenizer.kind": "char", "data.max_length": 24}),
    "translate": ("transformer-tiny", "x.tsv", PAIRS, "one cat there", {"tokenizer.vocab_size": 290}),
    "summarize": (
        "transformer-tiny",
        "x.jsonl",
        lines([{"text": f"the {word} sat on the mat", "summary": f"{word} sat"} for word in WORDS * 2]),
        "the cat sat on the mat",
        {"tokenizer.vocab_size": 290},
    ),
    "classify-text": (
        "bert-tiny",
        "x.tsv",
        "text\tlabel\n" + "".join(f"{word} number {i}\t{'ab'[i % 2]}\n" for i, word in enumerate(WORDS * 3)),
        "cat number 1",
        {"tokenizer.vocab_size": 120},
    ),
    "ask-image": ("metalm-tiny", "x.json", pictures.captioned(), pictures.square((200, 40, 40), 5), {}),
    "caption": ("show-attend-tell-tiny", "x.json", pictures.captioned(), pictures.square((200, 40, 40), 5), {}),
    "match": (
        "clip-tiny",
        "x.json",
        pictures.captioned(),
        pictures.square((200, 40, 40), 5),
        {"tokenizer.vocab_size": 290, "task.texts": ("red", "blue")},
    ),
    "read": (
        "line-reader-tiny",
        "x.tsv",
        pictures.lines(),
        pictures.square((200, 40, 40), 5),
        {"task.synthetic": 0.5, "task.max_target_length": 8},
    ),
    "classify-image": ("vit-tiny", "x.npz", {"x.npz": pictures.npz()}, pictures.square((200, 40, 40), 5), {}),
    "complete-image": (
        "image-transformer-tiny",
        "x.npz",
        {"x.npz": pictures.npz()},
        pictures.square((200, 40, 40), 5),
        {"task.num_samples": 1},
    ),
    "classify-audio": ("ast-tiny", "x.tsv", sounds.spoken(), sounds.tone(300), {}),
    "classify-set": (
        "ft-transformer-tiny",
        "x.csv",
        "size,color,label\n" + "".join(f"{i % 5},{'rgb'[i % 3]},{'ab'[i % 2]}\n" for i in range(30)),
        {"size": 3, "color": "r"},
        {},
    ),
    "classify-video": ("timesformer-tiny", "x.npz", {"x.npz": clips.npz()}, clips.clip("down"), {}),
    "transcribe": (
        "whisper-toy",
        "x.tsv",
        sounds.spoken(),
        sounds.tone(300),
        {"tokenizer.kind": "char", "task.seconds": 0.4},
    ),
    "classify-pair": (
        "bert-tiny",
        "x.tsv",
        "first\tsecond\tlabel\n" + "".join(f"one {a}\tone {b}\t{a == b}\n" for a in WORDS[:4] for b in WORDS[:6]),
        ("one cat", "one dog"),
        {"tokenizer.vocab_size": 120},
    ),
    "reconstruct": ("mae-tiny", "x.npz", {"x.npz": pictures.npz()}, pictures.square((200, 40, 40), 5), {}),
    "tag": (
        "bert-tiny",
        "x.conll",
        "".join(f"we O\nask O\n{word} B-PER\n\n" for word in WORDS * 2),
        "we ask cat",
        {"tokenizer.vocab_size": 120},
    ),
    "answer": ("bert-tiny", "x.json", squad(), ("who sat", "the cat sat"), {"tokenizer.vocab_size": 120}),
    "fill-mask": ("bert-tiny", "x.txt", TEXT, "the [MASK] sat", {"tokenizer.vocab_size": 120, "data.max_length": 24}),
    "electra": (
        "electra-joint-tiny",
        "x.txt",
        TEXT,
        "the cat sat",
        {"tokenizer.vocab_size": 120, "data.max_length": 24},
    ),
    "detect": ("detr-tiny", "x.json", pictures.coco(), pictures.square((200, 40, 40), 5), {}),
    "pose": ("keypoint-detr-tiny", "x.json", pictures.coco(), pictures.square((200, 40, 40), 5), {}),
    "segment": ("segmenter-tiny", "x.json", pictures.coco(), pictures.square((200, 40, 40), 5), {}),
    "embed": (
        "bert-tiny",
        "x.tsv",
        PAIRS.replace("source\ttarget", "first\tsecond"),
        "one cat",
        {"tokenizer.vocab_size": 120},
    ),
}


def test_every_task_is_here() -> None:
    assert CASES.keys() == TASKS.keys()


@pytest.mark.parametrize("task", CASES)
def test_cut_off_and_continued_it_ends_the_same(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, name, content, thing, more = CASES[task]
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    for file, inside in ({name: content.encode()} if isinstance(content, str) else content).items():
        (tmp_path / file).write_bytes(inside)
    order: dict[str, Any] = {"recipe": recipe, "data": tmp_path / name, **SETTINGS, **more}
    step = Trainer.step

    def die(engine: Trainer) -> None:
        step(engine)
        if engine.state.step == 5:
            raise DeadError

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", die)
        with pytest.raises(DeadError):
            af.train(task, out=tmp_path / "cut", **order)
    done = af.train(task, out=tmp_path / "cut", resume=True, **order)
    af.train(task, out=tmp_path / "whole", **order)
    cut, whole = (load_file(tmp_path / folder / "model.safetensors") for folder in ("cut", "whole"))
    assert cut.keys() == whole.keys() and all(torch.equal(cut[key], whole[key]) for key in whole)
    assert done.state.step == 6 and done.state.best is not None
    options = {"max_new_tokens": 4} if task == "generate" else {}
    answer = af.task(task, tmp_path / "whole", **options)(thing)
    may_end = ("ask-image", "caption", "read", "summarize", "translate")  # of which the first token may be the end
    assert str(answer) or task in may_end
