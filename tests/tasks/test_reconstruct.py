"""Masked autoencoders: they learn, show what they make, and their encoder goes on as a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.inputs.patches import patchify, unpatchify
from tests.training import picture_files as pictures

SETTINGS = {"steps": 30, "batch_size": 8, "lr": 3e-3, "eval_every": 30, "save_every": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("mae")
    (home / "x.npz").write_bytes(pictures.npz(48))
    af.train("reconstruct", recipe="mae-tiny", data=home / "x.npz", out=home / "mae", **SETTINGS)
    return home


def test_there_and_back() -> None:
    pixels = torch.randn(2, 3, 12, 8)
    assert torch.equal(unpatchify(patchify(pixels, (4, 2), channels_last=True), (3, 4), (4, 2)), pixels)


def test_it_learns_and_measures_the_same_twice(folder: Path) -> None:
    """The loss of a model that has learned is far below that of a fresh one; evaluating draws the same patches."""
    task: Any = af.task("reconstruct", folder / "mae")
    rows = task.read(folder / "x.npz")
    learned = task.evaluate(rows)
    assert learned == task.evaluate(rows)
    task.model.load_state_dict(af.build("mae-tiny").state_dict())
    assert learned["loss"] < 0.5 * task.evaluate(rows)["loss"]


def test_the_picture_shows_what_was_hidden(folder: Path) -> None:
    """Gray where the mask is, the image elsewhere; what was made of it keeps the patches that were seen."""
    task: Any = af.task("reconstruct", folder / "mae")
    square = pictures.square((200, 40, 40), 5)
    answer = task(square)
    assert (answer.hidden, answer.patches) == (12, 16) and "12 of 16 masked patches" in str(answer)
    sheet = np.asarray(answer.draw())
    side = 224  # each image, enlarged seven times, behind a gap of 4 and below the titles
    top = sheet.shape[0] - side - 4
    seen, made, whole = (sheet[top : top + side, 4 + i * (side + 4) :][::7, :side:7] for i in range(3))
    assert np.array_equal(whole, square)
    gray = (seen == 128).all(axis=-1).reshape(4, 8, 4, 8).all(axis=(1, 3))
    assert gray.sum() == 12
    kept = ~np.repeat(np.repeat(gray, 8, axis=0), 8, axis=1)
    assert np.array_equal(seen[kept], square[kept]) and np.array_equal(made[kept], square[kept])
    assert not np.array_equal(made, square)


def test_pixels_normalized_by_patch_come_back() -> None:
    """Where the model says exactly the target, the image is the image."""
    for normalize in (False, True):
        model = af.build("mae-tiny", norm_pix_loss=normalize).eval()
        head: Any = model.heads["pixels"]
        pixels = torch.randn(2, 3, 32, 32)
        made = head.reconstruct(head.target(pixels), pixels, torch.ones(2, 16))
        torch.testing.assert_close(made, pixels, rtol=1e-4, atol=1e-5)


def test_its_encoder_goes_on_as_a_classifier(folder: Path) -> None:
    """The same numbers as the autoencoder's encoder with nothing hidden, before a step is taken; then probing moves
    the head alone."""
    from anyformer.tasks.build import unwrap_pretrained

    mae = af.load(folder / "mae")
    model = unwrap_pretrained(mae)
    assert model.family == "vit"
    whole = af.build("mae-tiny", mask_ratio=0.01).eval()  # a hundredth of 16 patches: the last one in order is hidden
    whole.load_state_dict(mae.state_dict())
    noise = torch.arange(16.0).expand(2, -1)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad(), af.look(model, "encoder.input") as ours, af.look(whole, "encoder.input") as theirs:
        model(pixel_values=pixels)
        whole(pixel_values=pixels, noise=noise)
    torch.testing.assert_close(ours["encoder.input"][:, :16], theirs["encoder.input"])

    order = {**SETTINGS, "steps": 3, "train.freeze": ("encoder.*",), "model.drop_path": 0.3}
    done = af.train("classify-image", recipe=folder / "mae", data=folder / "x.npz", out=folder / "probe", **order)
    probed = af.load(done.folder)
    assert probed.config.to_json()["drop_path"] == 0.3, "which the encoder has, and the autoencoder has not"
    for name, value in probed.state_dict().items():
        if name.startswith("stages."):
            assert torch.equal(value, model.state_dict()[name]), name
    assert str(af.task("classify-image", folder / "probe")(pictures.square((200, 40, 40), 5)))


def test_training_further(folder: Path) -> None:
    """An autoencoder stays one where the task is its own."""
    order = {**SETTINGS, "steps": 2}
    done = af.train("reconstruct", recipe=folder / "mae", data=folder / "x.npz", out=folder / "more", **order)
    assert af.load(done.folder).family == "mae"


def test_a_classifier_is_none(folder: Path) -> None:
    with pytest.raises(af.ConfigError, match=r'"vit-tiny" .*mae-b16'):
        af.train("reconstruct", recipe="vit-tiny", data=folder / "x.npz", out=folder / "no")
