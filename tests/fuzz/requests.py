"""The explorer through its own app, without a socket: a view of a model, asked for by a damaged request."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.explorer import models, things
from tests.fuzz import seeds
from tests.fuzz.targets import Target

TEXT = {"text": models.TEXT, "new_tokens": 4, "beams": 2, "ablate": [{"stage": "decoder", "layer": 0, "head": 1}]}
SHOWN: dict[str, dict[str, Any]] = {
    "decoder": {**TEXT, "layers": [0, 1], "position": 2, "to": 1, "padding": 2, "head": 1, "stage": "decoder"},
    "encoder": {**TEXT, "ablate": [], "pair": "a man", "layer": 1},
    "pair": {**TEXT, "target": "the animal", "ablate": [{"stage": "encoder", "layer": 0}]},
    "vit": {"image": "", "layer": 0, "threshold": 0.5, "top": 0, "left": 0},
    "detr": {"image": "", "images": [], "threshold": 0.1},
    "ast": {"audio": "", "position": 1},
    "videomae": {"clip": "", "row": 0},
    "points": {"items": "", "row": 0},
    "table": {"items": "", "row": 0},
}


def save(root: Path) -> None:
    models.save(root / "decoder", "gpt2-tiny", models.tokenizer())
    models.save(root / "encoder", "bert-tiny", models.tokenizer("wordpiece", bert=True))
    models.save(root / "pair", "transformer-tiny", models.tokenizer(end=True))
    for name in ("vit", "detr", "ast", "videomae"):
        models.save(root / name, f"{name}-tiny")
    models.save(root / "points", "set-transformer-tiny")
    things.save_table(root / "table")


def file_of(name: str) -> bytes:
    """What a model without text is shown."""
    if name == "table":
        return b"age,height,job,town\n41,170,cook,Bern\n30,180,nurse,Basel\n"
    if name == "points":
        return seeds.npz(x=things.np.zeros((3, 5, 2), dtype="float32"))
    if name == "videomae":
        return things.frames_zip()
    return base64.b64decode(models.audio_file() if name == "ast" else models.image_file())


@cache
def client(root: Path) -> Any:
    from fastapi.testclient import TestClient

    from anyformer.explorer.app import make_app
    from anyformer.explorer.model_list import ModelList

    found = TestClient(make_app(ModelList.of(sorted(root.iterdir())), seconds=4.0), base_url="http://localhost")
    ids = {one["name"]: one["id"] for one in found.get("/api/models").json()["models"]}
    return found, ids


def target(name: str) -> Target:
    from anyformer.explorer.views import VIEWS

    body = SHOWN[name]
    field = next((key for key in ("image", "audio", "clip", "items") if key in body), None)

    def make(folder: Path, fixed: Path) -> None:
        if not (fixed.parent / "models").exists():
            save(fixed.parent / "models")
        seeds.write(folder, {"request.json": json.dumps(body).encode()})
        if field is not None:
            seeds.write(folder, {"file": file_of(name)})

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        app, ids = client(fixed.parent / "models")
        content = _content(folder, field)
        for view in chance.sample(sorted(VIEWS), 3):
            answer = app.post(
                f"/api/models/{ids[name]}/{view}", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code in (200, 400, 408, 413, 422), f"{view}: status {answer.status_code}"
            assert answer.status_code != 200 or isinstance(answer.json(), dict)

    return Target(f"explorer/{name}", make, act, quick=name in ("decoder", "vit", "points", "videomae"))


def _content(folder: Path, field: str | None) -> bytes:
    """The request, with the damaged file in it where there is one."""
    try:
        content = b""
        if (folder / "request.json").is_file():
            with (folder / "request.json").open("rb") as stream:
                content = stream.read(2**24)
        file = folder / "file"
        if field is None or not file.is_file() or file.stat().st_size > 2**24:
            return content
        request = json.loads(content)
        if request.get(field) == "":
            request[field] = base64.b64encode(file.read_bytes()).decode()
        return json.dumps(request).encode()
    except (OSError, ValueError, AttributeError, RecursionError):
        return content


def explorer() -> Iterator[Target]:
    for name in SHOWN:
        yield target(name)
