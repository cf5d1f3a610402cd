"""Every task with every tiny recipe through the command line: a pair trains, is saved, loaded, run and evaluated, or is
refused. The pairs that train are listed, so that a recipe that is suddenly refused, or suddenly accepted, fails."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import anyformer as af
from anyformer.cli.main import app
from anyformer.tasks import TASKS
from tests.tiny import family_of, tiny_recipes
from tests.training import picture_files as pictures
from tests.training.test_every_task import CASES

COMMAND = typer.main.get_command(app)  # parsed once: that takes longer than a refusal

# Families by what they read and give.
DECODERS = "gemma gemma2 gemma3 gpt1 gpt2 gpt3 gptneox llama mistral qwen2 qwen3".split()
ANCESTORS = "bilstm mamba mlp-mixer textcnn".split()  # other layers than attention, on one text
LANGUAGE_MODELS = [*DECODERS, *ANCESTORS, "transformer-xl"]
ENCODERS = "bert distilbert electra modernbert mpnet roberta roformer".split()
TEXT_MODELS = [*ENCODERS, *DECODERS, *ANCESTORS, "bart", "t5", "transformer"]
ENCODER_DECODERS = "bahdanau bart bytenet convs2s encoder-decoder luong sutskever t5 transformer".split()
# Image in, text out. GIT and TrOCR's decoder also continue a text without an image.
CAPTIONERS = "cnn-transformer git line-reader show-attend-tell show-tell vision-encoder-decoder".split()

PAIRS: dict[str, list[str]] = {
    "fill-mask": ENCODERS,
    "answer": [*ENCODERS, *DECODERS],
    "tag": [*ENCODERS, *DECODERS, *ANCESTORS],
    **dict.fromkeys(("classify-pair", "classify-text", "embed"), TEXT_MODELS),
    **dict.fromkeys(("summarize", "translate"), ENCODER_DECODERS),
    **dict.fromkeys(("caption", "read"), CAPTIONERS),
    "generate": [*LANGUAGE_MODELS, "git", "trocr"],
    "electra": ["electra-joint"],
    "ask-image": ["metalm"],
    "match": ["clip"],
    "classify-image": ["beit", "deit", "dinov2", "hybrid", "perceiver", "resnet", "vit"],
    "complete-image": ["dalle", "image-transformer", "imagegpt"],
    "reconstruct": ["mae"],
    "detect": ["detr"],
    "pose": ["keypoint-detr", "vitpose"],
    "segment": ["beit", "segmenter"],
    "classify-video": ["timesformer", "videomae"],
    "classify-audio": ["ast", "perceiver", "whisper"],
    "transcribe": ["whisper"],
    "classify-set": ["ft-transformer", "perceiver", "set-transformer"],
}
PARTS = {"clip-text", "clip-vision"}  # trained as the two towers of clip; no task takes one alone

STEP = {"train.steps": 1, "train.save_every": 0, "train.batch_size": 4, "train.device": "cpu"}
WRITERS = ("translate", "summarize", "caption")  # untrained, they do not stop by themselves
# Perceiver reads every pixel of an image, 224 x 224 of them by default.
MORE = {("classify-image", "perceiver"): {"data.image_size": 16}}


def point_sets() -> bytes:
    """Sets of two-dimensional points in an npz, and a label for each."""
    values, stream = np.random.default_rng(0).normal(size=(60, 2)), io.BytesIO()
    np.savez(stream, x=values, offsets=np.arange(0, 61, 3), y=np.array(["in", "out"] * 10))
    return stream.getvalue()


def write(folder: Path, task: str, family: str) -> tuple[Path, list[str]]:
    """The data of a task, and what `run` is given on the command line."""
    _, name, content, thing, _ = CASES[task]
    if task == "classify-set" and family != "ft-transformer":  # the others take sets of points, not rows of a table
        (folder / "x.npz").write_bytes(point_sets())
        return folder / "x.npz", ["[[0.1, 0.2], [0.3, 0.4]]"]
    for file, inside in ({name: content.encode()} if isinstance(content, str) else content).items():
        (folder / file).write_bytes(inside)
    return folder / name, typed(folder, thing)


def typed(folder: Path, thing: Any) -> list[str]:
    """A thing as it is typed: texts as they are, all else as a file, or as JSON."""
    if isinstance(thing, tuple):
        return list(thing)
    if isinstance(thing, Mapping):
        return [str(dict(thing)).replace("'", '"')]
    if isinstance(thing, bytes):
        (folder / "thing.wav").write_bytes(thing)
        return [str(folder / "thing.wav")]
    if isinstance(thing, np.ndarray) and thing.ndim == 4:
        (folder / "clip").mkdir(exist_ok=True)
        for i, frame in enumerate(thing):
            (folder / "clip" / f"{i}.png").write_bytes(pictures.encode(frame))
        return [str(folder / "clip")]
    if isinstance(thing, np.ndarray):
        (folder / "thing.png").write_bytes(pictures.encode(thing))
        return [str(folder / "thing.png")]
    return [str(thing)]


def command(*arguments: object) -> None:
    """A command as it is typed; a mistake of the user's is an af.Error, and nothing else may be raised."""
    COMMAND.main([str(argument) for argument in arguments], prog_name="anyformer", standalone_mode=False)


def train(task: str, *arguments: object) -> bool:
    """Whether the recipe fits the task, as a dry run says; if it does, it is trained, and no error is expected."""
    try:
        command("train", task, *arguments, "--dry-run")
    except af.ConfigError as error:
        if "does not fit this task" not in str(error):
            raise
        return False
    command("train", task, *arguments)
    return True


def spelled(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_every_task_and_every_recipe_is_here() -> None:
    assert PAIRS.keys() == TASKS.keys()
    trained = {family for families in PAIRS.values() for family in families}
    assert trained | PARTS == {family_of(name) for name in tiny_recipes()} and not trained & PARTS


@pytest.mark.parametrize("task", PAIRS)
def test_a_pair_trains_and_runs_or_is_refused(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    trained = []
    for recipe in tiny_recipes():
        family, out = family_of(recipe), tmp_path / recipe
        data, inputs = write(tmp_path, task, family)
        settings = {
            **STEP,
            **CASES[task][4],
            **({"task.max_target_length": 4} if task in WRITERS else {}),
            **MORE.get((task, family), {}),
        }
        options = [f"--set={key}={spelled(value)}" for key, value in settings.items()]
        if not train(task, "--recipe", recipe, "--data", data, "--out", out, *options):
            assert not out.exists()
            continue
        trained.append(family)
        texts = ["red", "blue"] if task == "match" else ["who is there?"] if task == "ask-image" else []
        short = ["--max-new-tokens", "3"] if task == "generate" else []
        command("run", task, "--model", out, *short, *inputs, *texts)
        command("eval", task, "--model", out, "--data", data)
    assert trained == sorted(PAIRS[task])
