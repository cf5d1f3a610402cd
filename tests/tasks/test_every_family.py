"""Every family that fits a task is built for the vocabulary at hand, learns, and runs from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import registry
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.rows import Rows
from anyformer.tasks import find
from tests.tasks.learn import begin, learn, listed
from tests.tiny import tiny_recipes


def tiny(task: str) -> list[str]:
    """The smallest recipe of each family."""
    kind = find(task)
    return [name for name in tiny_recipes() if kind.fits(registry.recipe(name).config)]  # type: ignore[attr-defined]


CLASSES = listed(*({"text": f"{word} {i}", "label": word} for i in range(4) for word in ("red", "blue")))
PAIRS = listed(*({"source": f"one {word}", "target": f"ein {word}"} for word in ("cat", "dog", "cow", "bee")))
TAGS = listed(
    {"tokens": ["Ann", "sings"], "tags": ["B-PER", "O"]}, {"tokens": ["we", "ask", "Tom"], "tags": ["O", "O", "B-PER"]}
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = tmp_path_factory.mktemp("data") / "x.txt"
    path.write_text("the cat sat on the mat\nand the dog sat on the cat\n" * 30)
    return find("generate").read(path)


@pytest.mark.parametrize("recipe", tiny("classify-text"))
def test_encoders(recipe: str, tmp_path: Path) -> None:
    task = begin("classify-text", recipe, CLASSES, vocab_size=120)
    losses = learn(task, CLASSES, 40, lr=1e-3)
    assert losses[-1] < losses[0]
    task.save(tmp_path / "x")
    again = af.task("classify-text", tmp_path / "x")
    assert again("red 1").scores == pytest.approx(task("red 1").scores, abs=1e-6)
    if not find("tag").fits(registry.recipe(recipe).config):
        return
    tagged = begin("tag", tmp_path / "x", TAGS)  # its words go on, its head does not
    assert learn(tagged, TAGS, 20, lr=1e-3)[-1] < 2 and len(tagged(("Ann", "sings")).tags) == 2
    words = next(name for name in task.model.state_dict() if name.endswith("inputs.words.weight"))
    assert tagged.model.state_dict()[words].shape == task.model.state_dict()[words].shape


@pytest.mark.parametrize("recipe", tiny("translate"))
def test_encoder_decoders(recipe: str, tmp_path: Path) -> None:
    task = begin("translate", recipe, PAIRS, {"num_beams": 2, "max_target_length": 12}, vocab_size=290)
    losses = learn(task, PAIRS, 30, lr=1e-3, batch=BatchConfig(rows=4))
    assert losses[-1] < losses[0]
    task.save(tmp_path / "x")
    texts = [row["source"] for row in PAIRS]
    assert af.task("translate", tmp_path / "x")(texts) == task(texts)


@pytest.mark.parametrize("recipe", tiny("generate"))
def test_decoders(recipe: str, text: Rows, tmp_path: Path) -> None:
    task = begin("generate", recipe, text, kind="char", max_length=24)
    losses = learn(task, text, 20, lr=1e-3, batch=BatchConfig(rows=8))
    assert losses[-1] < losses[0]
    task.save(tmp_path / "x")
    again = af.task("generate", tmp_path / "x", max_new_tokens=5)
    assert len(again("the cat").ids) <= 5
    assert again.evaluate(text)["loss"] == pytest.approx(task.evaluate(text)["loss"], rel=1e-4)  # type: ignore[attr-defined]


def test_a_recipe_may_be_changed(text: Rows) -> None:
    """model.* settings are the recipe's own."""
    config = registry.recipe("gpt2-tiny").config.replace(n_layers=1, max_length=48)
    task = begin("generate", "gpt2-tiny", text, kind="char", model=config)
    assert len(task.model.stages["decoder"].stack.blocks) == 1 and task.max_length == 48
    assert sum(p.numel() for p in task.model.parameters()) < sum(p.numel() for p in af.build("gpt2-tiny").parameters())
    assert task.model.device == torch.device("cpu")
