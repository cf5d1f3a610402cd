"""Detection on real images, where they are at hand: it can learn some of COCO's by heart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import anyformer as af

COCO = Path(os.environ.get("ANYFORMER_DATA", "nowhere")) / "coco256"
SETTINGS = {
    "model.image_size": [112, 160],
    "model.stem.widths": [16, 32, 64, 128],
    "model.d_model": 96,
    "model.n_layers": 1,
    "model.n_decoder_layers": 2,
    "model.d_hidden": 192,
    "model.d_decoder_hidden": 192,
    "model.n_queries": 36,
    "model.dropout": 0.0,
    "task.augment": {},
    "train.steps": 400,
    "train.batch_size": 4,
    "train.lr": 1e-3,
    "train.warmup_steps": 30,
    "train.ema_decay": 0.0,
    "train.eval_every": 400,
    "train.save_every": 0,
    "train.device": "cpu",
}


@pytest.mark.slow
@pytest.mark.skipif(not COCO.exists(), reason="coco256 is not here")
def test_four_pictures_by_heart(tmp_path: Path) -> None:
    """Trained and measured on the same four: AP50 of most of it, boxes of every size."""
    whole = json.loads((COCO / "train.json").read_text())
    names = ("id", "file_name", "width", "height")
    whole["images"] = [{name: image[name] for name in names} for image in whole["images"][:4]]
    kept = {image["id"] for image in whole["images"]}
    whole["annotations"] = [note for note in whole["annotations"] if note["image_id"] in kept]
    (tmp_path / "x.json").write_text(json.dumps(whole))
    data = [tmp_path / "x.json", COCO / "train_images.zip"]
    done = af.train("detect", recipe="detr-small", data=data, valid=data, out=tmp_path / "model", **SETTINGS)
    assert done.metrics["ap50"] > 0.6, done.metrics
