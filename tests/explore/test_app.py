"""The server: what it answers, and what it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from anyformer.errors import ConfigError, Error, FolderError
from anyformer.explore import app as app_module
from anyformer.explore.app import make_app
from anyformer.explore.ask import Ask
from anyformer.explore.opened import Opened
from anyformer.explore.patience import Patience
from anyformer.explore.server import free_socket
from anyformer.explore.shelf import Shelf

from .models import TEXT, save, tokenizer, view

Ids = dict[str, str]


@pytest.fixture(scope="module")
def client(shelf: Shelf) -> Iterator[TestClient]:
    with TestClient(make_app(shelf, largest=1 << 20), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Ids:
    return {one["name"]: one["id"] for one in client.get("/api/models").json()["models"]}


def test_the_models_and_what_they_are(client: TestClient, ids: Ids) -> None:
    decoder = client.get(f"/api/models/{ids['decoder']}").json()
    assert decoder["continues"] and decoder["text"] and not decoder["writes"] and not decoder["pictures"]
    assert client.get(f"/api/models/{ids['pair']}").json()["writes"]
    assert client.get(f"/api/models/{ids['detr']}").json()["boxes"]
    assert client.get(f"/api/models/{ids['mae']}").json()["hides"]


def test_a_view_over_http_is_the_view(client: TestClient, ids: Ids, opened: dict[str, Opened]) -> None:
    asked = {"text": TEXT, "layer": 1, "head": 2}
    answer = client.post(f"/api/models/{ids['decoder']}/head", json=asked)
    assert answer.status_code == 200
    assert answer.json() == view(opened["decoder"], "head", **asked)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("decoder/nothing", {}, "no such view"),
        ("decoder/head", {"txt": "a"}, 'Did you mean "text"'),
        ("decoder/head", {"text": 3}, "text is 3"),
        ("decoder/head", {"text": ""}, "write some"),
        ("decoder/head", {"text": "a", "layer": 99}, "layers 0 to 1"),
        ("decoder/head", {"text": "a", "head": 99}, "heads 0 to 3"),
        ("decoder/row", {"text": "a", "position": 99}, "99 is none of them"),
        ("decoder/next", {"text": "a", "temperature": 0}, "temperature"),
        ("decoder/next", {"text": "x" * 200_000}, "characters"),
        ("decoder/generation", {"text": "a", "new_tokens": 100_000}, "new_tokens"),
        ("decoder/next", {"text": "a", "silence": [{"stage": "decoder", "layer": 7}]}, "no attention"),
        ("decoder/picture", {"text": "a"}, "does not look at pictures"),
        ("encoder/generation", {"text": "a"}, "does not write"),
    ],
)
def test_mistakes_are_one_sentence(client: TestClient, ids: Ids, path: str, body: dict[str, Any], says: str) -> None:
    name, chosen = path.split("/")
    answer = client.post(f"/api/models/{ids[name]}/{chosen}", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


def test_what_is_refused(client: TestClient, ids: Ids) -> None:
    where = f"/api/models/{ids['decoder']}/head"
    assert client.post(where, json={"text": "a", "picture": "A" * (1 << 21)}).status_code == 413
    assert client.post(where, content=b"{}", headers={"content-type": "text/plain"}).status_code == 400
    assert client.post(where, content=b"[", headers={"content-type": "application/json"}).status_code == 400
    assert client.post(where, content=b"[]", headers={"content-type": "application/json"}).status_code == 400
    assert client.get("/api/models", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/api/models/nothing").status_code == 400
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/static/../../app.py", "//etc/passwd"):
        assert client.get(path).status_code in (400, 404), path
    inside = client.get("/api/models/..%2f..%2fetc")
    assert inside.status_code in (400, 404)


def test_the_page_is_served_whole_and_locked_down(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200 and "anyformer" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in ("app.js", "style.css", "views.js", "draw.js"):
        assert client.get(f"/{name}").status_code == 200
    static = Path(app_module.STATIC)
    for path in static.iterdir():  # works offline: nothing is fetched from elsewhere
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text, path.name


def test_paths_of_this_machine_are_not_told(client: TestClient, folder: Path) -> None:
    assert str(folder) not in client.get("/api/models").text


def test_two_people_do_not_mix(client: TestClient, ids: Ids) -> None:
    """Different texts and silenced heads at once give what each gives alone."""
    mute = [{"stage": "decoder", "layer": 0, "head": 1}]
    asked: list[dict[str, Any]] = [
        {"text": text, "silence": mute if i % 2 else []} for i, text in enumerate([TEXT] * 4)
    ]
    asked += [{"text": "a man rides"}, {"text": "the street"}]
    where = f"/api/models/{ids['decoder']}/next"
    alone = [client.post(where, json=body).json() for body in asked]
    with ThreadPoolExecutor(6) as people:
        together = list(people.map(lambda body: client.post(where, json=body).json(), asked * 3))
    assert together == alone * 3
    assert alone[0] != alone[1]


def test_patience_ends(opened: dict[str, Opened]) -> None:
    one = opened["decoder"]
    ended, gone = Patience(0), Patience(60)
    gone.cancel()
    time.sleep(0.01)
    for patience, says in ((ended, "longer than"), (gone, "cancelled")):
        with pytest.raises(Error, match=says):
            one.look(Ask(text="something new for nobody"), patience)
    lock = threading.Lock()
    with lock, pytest.raises(Error, match="cancelled"):
        gone.take(lock)
    assert view(one, "next", text="something new for nobody")["words"]  # whoever is patient gets an answer


def test_a_slow_question_is_answered_408(shelf: Shelf, ids: Ids) -> None:
    with TestClient(make_app(shelf, seconds=0.0), base_url="http://localhost") as client:
        answer = client.post(f"/api/models/{ids['pair']}/generation", json={"text": "nobody asked this before"})
    assert answer.status_code == 408


def test_the_shelf_finds_models_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "er" / "one", "gpt2-tiny", tokenizer())
    (tmp_path / "not").mkdir()
    (tmp_path / "not" / "config.json").write_text("{}")
    found = [entry.name for entry in Shelf.around(tmp_path).entries.values()]
    assert "deep/er/one" in found and "not" not in found
    with pytest.raises(FolderError, match="is no model"):
        Shelf.of([tmp_path / "not"])


def test_a_port_that_is_taken_is_said() -> None:
    with free_socket(None) as one:
        assert one.getsockname()[0] == "127.0.0.1"
        port = one.getsockname()[1]
        one.listen()
        with pytest.raises(ConfigError, match=f"Port {port} is taken"):
            free_socket(port)
