"""complete-image: bits against a formula, completions that were learned by heart, batches as alone, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import registry
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.rows import Rows
from anyformer.tasks import find
from tests.checkpoints.oracles import make_oracle, save_oracle
from tests.tasks.learn import begin, learn, listed

pytest.importorskip("PIL")
PLANE: dict[str, Any] = {"image_size": (8, 8), "local": "2d", "block": (4, 4), "memory": (4, 4)}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "line": ("image-transformer-tiny", {}),
    "plane": ("image-transformer-tiny", PLANE),
    "palette": ("imagegpt-tiny", {"vocab_size": 5, "embedding_dropout": 0.0, "attention_dropout": 0.0}),
}
COLORS = np.array([[10, 10, 10], [250, 240, 230], [200, 30, 30], [20, 60, 220]], dtype=np.uint8)


def stripes(i: int) -> ImageFile:
    """8 x 8 pixels in one of two colors by column, the lower half in two others."""
    upper = COLORS[[i % 2 * 2, i % 2 * 2 + 1]]
    picture = np.stack([upper[np.arange(8) // 2 % 2]] * 4 + [upper[1 - np.arange(8) // 4 % 2]] * 4)
    return ImageFile.of(picture, f"stripes {i}")


ROWS: Rows = listed(*({"image": stripes(i)} for i in range(4)))


def task_of(way: str) -> Any:
    recipe, changes = WAYS[way]
    config = registry.recipe(recipe).config.replace(dropout=0.0, **changes)
    return begin("complete-image", recipe, ROWS, {"augment": Augmentation()}, model=config)


@pytest.mark.parametrize("way", WAYS)
def test_learned_by_heart_and_completed(way: str, tmp_path: Path) -> None:
    """Few bits after training, the lower half as it was, from the folder too."""
    task = task_of(way)
    before = task.evaluate(ROWS)[task.metric]
    learn(task, ROWS, 60, lr=3e-3, batch=BatchConfig(rows=4))
    figures = task.evaluate(ROWS)
    assert figures[task.metric] < 0.1 < before
    assert figures[task.metric] == pytest.approx(figures["loss"] / math.log(2))
    task.save(tmp_path / "x")
    again = af.task("complete-image", tmp_path / "x", num_samples=2, temperature=0.5)
    assert again.metric == task.metric == ("bits_per_code" if way == "palette" else "bits_per_dimension")
    for i in (0, 1):
        answer = again(stripes(i))
        expected = np.asarray(stripes(i).open())
        assert len(answer.images) == 2 and answer.rows == (4, 8)
        for picture in answer.images:
            assert np.abs(picture.astype(int) - expected).max() <= 1
        assert (answer.given[4:] == 128).all() and np.abs(answer.given[:4].astype(int) - expected[:4]).max() <= 1
        assert answer.bits < 0.2 and "4 of 8 rows" in str(answer)
        assert answer.draw().size[0] > 4 * 224


@pytest.mark.parametrize("way", WAYS)
def test_bits_of_a_model_that_knows_nothing(way: str) -> None:
    """With an output of zeros every value is equally likely: log2 of how many there are."""
    task = task_of(way)
    torch.nn.init.zeros_(task.model.heads["language"].words.weight)
    expected = 2.0 if way == "palette" else 8.0
    assert task.evaluate(ROWS)[task.metric] == pytest.approx(expected, abs=1e-5)
    assert task(stripes(0), num_samples=1).bits == pytest.approx(expected, abs=1e-5)


def test_bits_are_summed_over_all_values() -> None:
    """Each value's -log2 p, read one by one from passes over what stands before it."""
    task = task_of("plane")
    tokens = task.codes.encode(torch.from_numpy(np.array(stripes(1).open())).permute(2, 0, 1)[None])[0]
    total = 0.0
    with torch.no_grad():
        for i in range(0, len(tokens), 7):
            ids = torch.cat([torch.tensor([256]), tokens[:i]])[None]
            total -= float(torch.log_softmax(task.model(input_ids=ids).logits[0, -1], dim=-1)[tokens[i]])
        batch = task.sequences(tokens[None])
        logits = task.model(input_ids=batch["ids"]).logits
        said = torch.log_softmax(logits, dim=-1).gather(2, batch["labels"][..., None])[0, ::7, 0]
    assert total == pytest.approx(-float(said.sum()), rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_together_as_alone(way: str) -> None:
    """Each completion has dice of its own; the same seed draws the same, another one something else."""
    task = task_of(way)
    together = task([stripes(0), stripes(1)], num_samples=3, seed=5)
    for i, answer in enumerate(together):
        alone = task(stripes(i), num_samples=3, seed=5)
        assert all(np.array_equal(a, b) for a, b in zip(answer.images, alone.images, strict=True))
    assert not np.array_equal(together[0].images[0], together[0].images[1])
    other = task(stripes(0), num_samples=1, seed=6)
    assert not np.array_equal(other.images[0], together[0].images[0])


def test_a_text_says_which_picture(tmp_path: Path) -> None:
    """Two texts, two images: drawn from the text alone, completed by both, and another text is another image."""
    rows = listed(*({"image": stripes(i), "label": ("red", "dark")[i % 2]} for i in range(4)))
    rows = find("complete-image").fit(rows)
    config = registry.recipe("dalle-tiny").config.replace(
        **{"n_codes": 4, "vocab_size": 261, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    )
    task = begin("complete-image", "dalle-tiny", rows, {"augment": Augmentation()}, model=config)
    learn(task, rows, 120, lr=3e-3, batch=BatchConfig(rows=4))  # until every single code is sure
    assert task.evaluate(rows)["bits_per_code"] < 0.02
    task.save(tmp_path / "x")
    again = af.task("complete-image", tmp_path / "x", num_samples=2, top_k=1)
    drawn = again(["red", "dark"])
    for i, answer in enumerate(drawn):
        assert str(answer) == f"{('red', 'dark')[i]}: 2 images" and answer.draw().size[0] > 2 * 224
        assert all(np.abs(one.astype(int) - np.asarray(stripes(i).open())).max() <= 1 for one in answer.images)
    assert again(("dark", stripes(1))).bits < 0.1 < again(("red", stripes(1)), prompt_fraction=0.0).bits
    stripes(1).open().save(tmp_path / "x.png")
    assert "4 of 8 rows" in str(again(str(tmp_path / "x.png")))
    with pytest.raises(af.Error, match=r"missing\.png"):
        again("missing.png")


def test_texts_are_bytes() -> None:
    """Each byte from 1 on, filled up with zeros, and cut where the model reads no further."""
    task = begin(
        "complete-image",
        "dalle-tiny",
        ROWS,
        model=registry.recipe("dalle-tiny").config.replace(n_codes=4, vocab_size=261),
    )
    assert task.spell("aé").tolist() == [98, 196, 170, 0, 0, 0, 0, 0]
    assert task.spell("abcdefghij").tolist() == list(range(98, 106))
    assert task.spell(None).tolist() == [0] * 8


def test_nothing_given_is_a_picture_out_of_nothing() -> None:
    answer = task_of("line")(stripes(0), num_samples=1, prompt_fraction=0.0)
    assert answer.rows == (0, 8) and (answer.given == 128).all()


def test_flipped_pictures_are_whole_numbers() -> None:
    """Augmentation moves pixels exactly: a mirrored image has the same values, right to left."""
    task = task_of("line")
    task.settings = task.settings.replace(augment=Augmentation(flip=1.0))
    pixels = torch.from_numpy(np.stack([np.asarray(stripes(i).open()) for i in range(2)])).permute(0, 3, 1, 2)
    batch = task.ready({"pixels": pixels}, torch.Generator().manual_seed(0))
    assert torch.equal(task.codes.decode(batch["labels"]), pixels.flip(-1))
    assert batch["ids"][:, 0].tolist() == [256, 256]
    assert torch.equal(batch["ids"][:, 1:], batch["labels"][:, :-1])


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    """Its clusters are the palette; without them the folder is refused."""
    model = make_oracle("ImageGPTForCausalImageModeling", n_positions=64, vocab_size=5)
    folder = save_oracle(model, tmp_path)
    with pytest.raises(af.ConfigError, match="colors"):
        af.task("complete-image", folder)
    clusters = ((COLORS.astype(np.float64) - 127.5) / 127.5).tolist()
    config = {"image_processor_type": "ImageGPTImageProcessor", "clusters": clusters}
    config |= {"size": {"height": 8, "width": 8}, "do_normalize": True, "do_resize": True, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    answer = af.task("complete-image", folder)(stripes(1), num_samples=1)
    assert np.array_equal(answer.original, np.asarray(stripes(1).open()))
    assert {tuple(color) for color in answer.images[0].reshape(-1, 3)} <= {tuple(color) for color in COLORS}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"prompt_fraction": 1.0}, "prompt_fraction"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_beams": 3}, "num_beams"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], word: str) -> None:
    with pytest.raises(af.Error, match=word):
        task_of("line")(stripes(0), **options)


def test_models_that_write_no_pixels(tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match="a decoder of pixels"):
        begin("complete-image", "gpt2-tiny", ROWS)
    af.build("imagegpt-tiny", head="classify").save(tmp_path / "x")
    with pytest.raises(af.FolderError, match=r"imagegpt model .*complete-image"):
        af.task("complete-image", tmp_path / "x")
    with pytest.raises(af.ConfigError, match="image_size"):
        begin("complete-image", "imagegpt-tiny", ROWS, image_size=16)
