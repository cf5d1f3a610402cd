"""For the same input the explorer gives the answer that the task gives on the command line and in Python."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.settings import TokenizerSettings
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views.word_attention import word_attention
from anyformer.tasks import find
from anyformer.tasks.base import TaskSetup
from tests.explorer.models import view
from tests.tasks.learn import awake, listed
from tests.training import picture_files as files
from tests.training import sound_files as sounds
from tests.training.test_every_task import CASES

SEED = {"read": 1}  # whose weights do not end at once
RECIPES = [
    ("caption", "cnn-transformer-tiny", 4),
    ("caption", "git-tiny", 3),
    ("read", "line-reader-tiny", 2),
    ("ask-image", "metalm-tiny", 3),
]


def make(name: str, recipe: str, folder: Path, beams: int) -> Path:
    """An untrained model whose answers run on for longer than the explorer's usual 20 tokens."""
    _, file, content, _, more = CASES[name]
    for path, inside in content.items():
        (folder / path).write_bytes(inside)
    kind: Any = find(name)
    torch.manual_seed(SEED.get(name, 0))
    rows = kind.read(folder / file)
    own = {key.removeprefix("task."): value for key, value in more.items() if key.startswith("task.")}
    options = kind.options_class(**{**own, "num_beams": beams, "max_target_length": 30})
    task = kind.begin(recipe, rows, None, TaskSetup(tokenizer=TokenizerSettings(vocab_size=290), task=options))
    awake(task).model.eval()
    task.save(folder / "m")
    return folder / "m"


def written(opened: LoadedModel, **asked: Any) -> list[int]:
    """The ids that a page shows, without the end."""
    word_attention(opened, ViewRequest(**asked), Deadline(60))
    subject = next(reversed(opened.cache.values()))[0]
    end = opened.task.end
    return [word.id for word in subject.answers if word.id not in (end, opened.task.tokenizer.pad_id)]


@pytest.mark.parametrize(("name", "recipe", "beams"), RECIPES)
def test_images(name: str, recipe: str, beams: int, tmp_path: Path) -> None:
    folder = make(name, recipe, tmp_path, beams)
    content = files.encode(files.square((200, 40, 40), 5))
    answer = af.task(name, folder)(content)
    opened = LoadedModel.load(folder)
    picture = base64.b64encode(content).decode()
    assert written(opened, image=picture) == list(answer.ids)
    greedy = list(af.task(name, folder)(content, num_beams=1, max_new_tokens=20).ids)
    assert greedy != list(answer.ids), "the case tells beams from greedy search"
    assert written(opened, image=picture, new_tokens=3) == list(af.task(name, folder)(content, max_new_tokens=3).ids)


def test_a_question(tmp_path: Path) -> None:
    folder = make("ask-image", "metalm-tiny", tmp_path, 2)
    content = files.encode(files.square((200, 40, 40), 5))
    opened = LoadedModel.load(folder)
    asked = {"image": base64.b64encode(content).decode(), "text": "which color is it?"}
    expected = af.task("ask-image", folder)(content, question="which color is it?")
    assert written(opened, **asked) == list(expected.ids)


def test_a_line_wider_than_the_model_reads(tmp_path: Path) -> None:
    folder = make("read", "line-reader-tiny", tmp_path, 1)
    content = files.encode(np.tile(files.square((10, 10, 10), 1), (1, 40, 1)))
    with pytest.warns(UserWarning, match="squeezed"):
        expected = af.task("read", folder)(content)
    with pytest.warns(UserWarning, match="squeezed"):
        assert written(LoadedModel.load(folder), image=base64.b64encode(content).decode()) == list(expected.ids)


TEXTS = [
    "one dog there",
    "one Dog met Mary there in 1992",
    "ONE DOG THERE",
    "one dog. One cat, there!\n\nOne cow?",
    "***",
]


@pytest.mark.parametrize("care", [{}, {"sentences": True}, {"sentences": True, "copies": True}, {"num_beams": 1}])
def test_texts(care: dict[str, Any], tmp_path: Path) -> None:
    """With the task's care for loops, sentences, capitals and names."""
    kind: Any = find("translate")
    rows = listed(*({"source": f"one {word} there", "target": f"ein {word} dort"} for word in "cat dog cow".split()))
    options = kind.options_class(**{"num_beams": 3, "max_target_length": 30, **care})
    task = kind.begin(
        "transformer-tiny", rows, None, TaskSetup(tokenizer=TokenizerSettings(vocab_size=290), task=options)
    )
    awake(task).model.eval()
    task.save(tmp_path / "m")
    opened, work = LoadedModel.load(tmp_path / "m"), af.task("translate", tmp_path / "m")
    for text in TEXTS:
        for new, asked in ((None, {}), (3, {"max_new_tokens": 3})):
            subject, _ = opened.trace(ViewRequest(text=text, new_tokens=new), Deadline(60))
            ids = [word.id for word in subject.answers if word.id != opened.end]
            assert work.tokenizer.target.decode(ids).strip() == str(work(text, **asked)).strip()


def test_the_prefix_of_a_task_is_read(tmp_path: Path) -> None:
    kind: Any = find("translate")
    rows = listed(*({"source": f"one {word} there", "target": f"ein {word} dort"} for word in "cat dog cow".split()))
    options = kind.options_class(prefix="say: ")
    task = kind.begin(
        "transformer-tiny", rows, None, TaskSetup(tokenizer=TokenizerSettings(vocab_size=290), task=options)
    )
    task.save(tmp_path / "m")
    subject, _ = LoadedModel.load(tmp_path / "m").trace(ViewRequest(text="one dog"), Deadline(60))
    assert subject.batch["input_ids"].tolist() == [task.tokenizer.encode("say: one dog")]


def test_names_that_a_call_puts_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the text of the answer, though the model wrote another."""
    kind: Any = find("translate")
    rows = listed(*({"source": f"one {word} there", "target": f"ein {word} dort"} for word in "cat dog cow".split()))
    options = kind.options_class(num_beams=3, copies=True)
    task = kind.begin(
        "transformer-tiny", rows, None, TaskSetup(tokenizer=TokenizerSettings(vocab_size=290), task=options)
    )
    awake(task).model.eval()
    task.save(tmp_path / "m")
    monkeypatch.setattr("anyformer.tasks.translate.mend", lambda source, answer, doubts: "ein cow dort")
    subject, _ = LoadedModel.load(tmp_path / "m").trace(ViewRequest(text="one dog met Mary"), Deadline(60))
    shown = task.tokenizer.target.decode([word.id for word in subject.answers if word.id != task.end]).strip()
    assert shown == "ein cow dort" == str(af.task("translate", tmp_path / "m")("one dog met Mary"))


def test_speech(tmp_path: Path) -> None:
    name, recipe = "transcribe", "whisper-toy"
    _, file, content, _, _ = CASES[name]
    for path, inside in content.items():
        (tmp_path / path).write_bytes(inside)
    kind: Any = find(name)
    task = kind.begin(recipe, kind.read(tmp_path / file), None, TaskSetup(tokenizer=TokenizerSettings(kind="char")))
    awake(task).model.eval()
    task.save(tmp_path / "m")
    opened = LoadedModel.load(tmp_path / "m")
    content = sounds.tone(440)
    subject, _ = opened.trace(ViewRequest(audio=base64.b64encode(content).decode()), Deadline(60))
    expected = af.task(name, tmp_path / "m")(content)
    said = opened.task.tokenizer.decode([word.id for word in subject.answers if word.id != task.end]).strip()
    assert said == expected.text


def test_boxes(tmp_path: Path) -> None:
    """Cut to the image, and each thing once."""
    for path, inside in files.coco().items():
        (tmp_path / path).write_bytes(inside)
    kind: Any = find("detect")
    config = af.registry.recipe("detr-tiny").config.replace(
        stem=af.registry.recipe("detr-small").config.stem.replace(widths=(16, 24, 32), depths=(0, 1, 1)),
        **{"anchors": True, "auxiliary_loss": True, "n_queries": 80},
    )
    task = kind.begin(
        "detr-tiny", kind.read(tmp_path / "x.json"), None, TaskSetup(config, task=kind.options_class(nms=0.05))
    )
    task.model.eval()
    task.save(tmp_path / "m")
    content = files.encode(files.square((200, 40, 40), 5))
    expected = af.task("detect", tmp_path / "m")(content, threshold=0.0)
    got = view(LoadedModel.load(tmp_path / "m"), "boxes", image=base64.b64encode(content).decode(), threshold=0.0)
    assert 0 < len(expected) < 80
    assert [thing["query"] for thing in got["detections"]] == [thing.query for thing in expected]
    shares = np.array([thing["box"] for thing in got["detections"]]) * 32
    np.testing.assert_allclose(shares, [thing.box for thing in expected], atol=1e-3)
