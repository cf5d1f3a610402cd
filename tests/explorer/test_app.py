"""The server: what it answers, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

import anyformer
from anyformer.errors import ConfigError, Error, FolderError
from anyformer.explorer import app as app_module
from anyformer.explorer import model_list as shelf_module
from anyformer.explorer.app import make_app
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.model_list import ModelList, shipped
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.server import free_socket
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import VIEWS
from tests.explorer.models import TEXT, image_file, save, tokenizer, view

Ids = dict[str, str]


@pytest.fixture(scope="module")
def client(shelf: ModelList) -> Iterator[TestClient]:
    with TestClient(make_app(shelf, max_bytes=1 << 20), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Ids:
    return {one["name"]: one["id"] for one in client.get("/api/models").json()["models"]}


def test_the_models_and_what_they_are(client: TestClient, ids: Ids) -> None:
    decoder = client.get(f"/api/models/{ids['decoder']}").json()
    assert decoder["decoder_only"] and decoder["text"] and not decoder["encoder_decoder"] and not decoder["images"]
    assert client.get(f"/api/models/{ids['pair']}").json()["encoder_decoder"]
    assert client.get(f"/api/models/{ids['detr']}").json()["boxes"]
    assert client.get(f"/api/models/{ids['mae']}").json()["reconstruction"]


def test_a_view_over_http_is_the_view(client: TestClient, ids: Ids, opened: dict[str, LoadedModel]) -> None:
    asked = {"text": TEXT, "layer": 1, "head": 2}
    answer = client.post(f"/api/models/{ids['decoder']}/head", json=asked)
    assert answer.status_code == 200
    assert answer.json() == view(opened["decoder"], "head", **asked)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("decoder/nothing", {}, "Unknown view"),
        ("decoder/head", {"txt": "a"}, 'Did you mean "text"'),
        ("decoder/head", {"text": "a", "ablate": [{}]}, 'needs "stage"'),
        ("decoder/head", {"text": "a", "ablate": [3]}, "ablate"),
        ("decoder/head", {"text": 3}, "text is 3"),
        ("decoder/head", {"text": ""}, "text is empty"),
        ("decoder/head", {"text": "a", "layer": 99}, "layers 0 to 1"),
        ("decoder/head", {"text": "a", "head": 99}, "expected 0 to 3"),
        ("decoder/row", {"text": "a", "position": 99}, "position is 99"),
        ("decoder/next", {"text": "a", "temperature": 0}, "temperature"),
        ("decoder/next", {"text": "x" * 200_000}, "characters"),
        ("decoder/generation", {"text": "a", "new_tokens": 100_000}, "new_tokens"),
        ("decoder/generation", {"text": "a", "seed": "x"}, "seed is 'x'"),
        ("decoder/generation", {"text": "a", "seed": 10**20}, "seed must be a whole number"),
        ("mae/reconstruction", {"image": "", "seed": -(10**20)}, "seed must be a whole number"),
        ("decoder/next", {"text": "a", "ablate": [{"stage": "decoder", "layer": 7}]}, "no attention"),
        ("decoder/input", {"text": "a"}, "no attention over images"),
        ("encoder/generation", {"text": "a"}, "do not generate text"),
    ],
)
def test_mistakes_are_one_sentence(client: TestClient, ids: Ids, path: str, body: dict[str, Any], says: str) -> None:
    name, chosen = path.split("/")
    answer = client.post(f"/api/models/{ids[name]}/{chosen}", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize("recipe", ["metalm-tiny", "bert-tiny"])
def test_a_second_text_for_a_model_that_reads_none(tmp_path: Path, recipe: str) -> None:
    """An empty one is none."""
    pytest.importorskip("PIL", reason="images are read with Pillow")
    one = LoadedModel.load(save(tmp_path / "model", recipe))
    asked = {"text": "5 7", "image": image_file()}
    assert view(one, "tokens", **asked, pair="")["words"] == view(one, "tokens", **asked)["words"]
    with pytest.raises(Error, match="does not accept a second text"):
        view(one, "tokens", **asked, pair="5")


def test_what_is_refused(client: TestClient, ids: Ids) -> None:
    where = f"/api/models/{ids['decoder']}/head"
    assert client.post(where, json={"text": "a", "image": "A" * (1 << 21)}).status_code == 413
    assert client.post(where, content=b"{}", headers={"content-type": "text/plain"}).status_code == 400
    assert client.post(where, content=b"[", headers={"content-type": "application/json"}).status_code == 400
    assert client.post(where, content=b"[]", headers={"content-type": "application/json"}).status_code == 400
    deep = client.post(where, content=b"[" * 200_000, headers={"content-type": "application/json"})
    half = client.post(where, content=b'{"text": "\\ud800"}', headers={"content-type": "application/json"})
    assert half.status_code == 400 and "surrogate" in half.json()["error"]
    assert deep.status_code == 400 and "nested too deeply" in deep.json()["error"]
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
    asked: list[dict[str, Any]] = [{"text": text, "ablate": mute if i % 2 else []} for i, text in enumerate([TEXT] * 4)]
    asked += [{"text": "a man rides"}, {"text": "the street"}]
    where = f"/api/models/{ids['decoder']}/next"
    alone = [client.post(where, json=body).json() for body in asked]
    with ThreadPoolExecutor(6) as people:
        together = list(people.map(lambda body: client.post(where, json=body).json(), asked * 3))
    assert together == alone * 3
    assert alone[0] != alone[1]


def test_patience_ends(opened: dict[str, LoadedModel]) -> None:
    one = opened["decoder"]
    ended, gone = Deadline(0), Deadline(60)
    gone.cancel()
    time.sleep(0.01)
    for patience, says in ((ended, "longer than"), (gone, "canceled")):
        with pytest.raises(Error, match=says):
            one.trace(ViewRequest(text="something new for nobody"), patience)
    lock = threading.Lock()
    with lock, pytest.raises(Error, match="canceled"):
        gone.acquire(lock)
    assert view(one, "next", text="something new for nobody")["words"]  # whoever is patient gets an answer


def test_a_browser_that_leaves_stops_the_work(shelf: ModelList, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed in the middle of a view that would never end."""
    begun, stopped = threading.Event(), threading.Event()

    def endless(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
        begun.set()
        try:
            while True:
                patience.check()
                time.sleep(0.01)
        finally:
            stopped.set()

    monkeypatch.setitem(VIEWS, "head", endless)
    listening = free_socket(None)
    server = uvicorn.Server(uvicorn.Config(make_app(shelf), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    body = b'{"text": "a"}'
    with socket.create_connection(listening.getsockname()) as browser:
        head = f"POST /api/models/{ids['decoder']}/head HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        browser.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert begun.wait(60)
        assert not stopped.is_set()
    assert stopped.wait(30)  # long before the patience of 60 s
    server.should_exit = True
    thread.join(timeout=10)


def test_a_slow_question_is_answered_408(shelf: ModelList, ids: Ids) -> None:
    with TestClient(make_app(shelf, seconds=0.0), base_url="http://localhost") as client:
        answer = client.post(f"/api/models/{ids['pair']}/generation", json={"text": "nobody asked this before"})
    assert answer.status_code == 408


def test_the_shelf_finds_models_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "er" / "one", "gpt2-tiny", tokenizer())
    (tmp_path / "not").mkdir()
    (tmp_path / "not" / "config.json").write_text("{}")
    found = [entry.name for entry in ModelList.around(tmp_path).entries.values()]
    assert "deep/er/one" in found and "not" not in found
    with pytest.raises(FolderError, match="is not a model"):
        ModelList.of([tmp_path / "not"])
    outside = tmp_path / "deep"
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside, target_is_directory=True)  # leads out of the folder
    assert not [entry for entry in ModelList.around(inside).entries.values() if entry.group == "here"]


def test_the_shelf_says_what_a_model_is(tmp_path: Path) -> None:
    save(tmp_path / "one", "gpt2-tiny", tokenizer())
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("[1]")
    (tmp_path / "odd" / "model.safetensors").write_bytes(b"")
    found = {
        entry.name: entry.to_json() for entry in ModelList.around(tmp_path).entries.values() if entry.group == "here"
    }
    assert (found["one"]["family"], found["one"]["description"]) == ("gpt2", "gpt2-tiny")
    assert found["odd"]["description"] == ""
    assert all("path" not in entry for entry in found.values())


def test_models_that_ship_are_listed_where_they_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the listing of the package that has them; one that is not here is left out."""
    here = save(tmp_path / "one", "gpt2-tiny", tokenizer())
    known = [
        SimpleNamespace(name="stories", path=here, problem=None, description="tells stories", task="generate"),
        SimpleNamespace(name="gone", path=None, problem="not here", description="", task="tag"),
    ]
    monkeypatch.setitem(sys.modules, "anyformer.pretrained", module := ModuleType("anyformer.pretrained"))
    module.__spec__ = ModuleSpec("anyformer.pretrained", None)
    monkeypatch.setattr(module, "models", lambda: known, raising=False)
    found = [one for one in shipped() if one.name in ("stories", "gone")]
    assert [(one.name, one.description, one.task, one.group) for one in found] == [
        ("stories", "tells stories", "generate", "shipped")
    ]
    named = ModelList.of([Path("stories"), here]).entries.values()
    assert [(one.name, one.group, one.path) for one in named] == [("stories", "given", here), ("one", "given", here)]
    with pytest.raises(FolderError, match="gone is not a model"):
        ModelList.of([Path("gone")])


def test_models_make_room_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "MAX_LOADED_BYTES", 1)
    shelf = ModelList.of([folder / "decoder", folder / "encoder"])
    for name in [*shelf.entries, *shelf.entries]:
        shelf.open(name, Deadline(60))
        assert list(shelf.loaded) == [name]


def test_a_port_that_is_taken_is_said() -> None:
    with free_socket(None) as one:
        assert one.getsockname()[0] == "127.0.0.1"
        port = one.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} is in use"):
            free_socket(port)


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_is_none_is_said(port: int) -> None:
    with pytest.raises(ConfigError, match=f"--port is {port}"):
        free_socket(port)


def test_the_command_serves_until_it_is_told_to_stop(folder: Path) -> None:
    command = [sys.executable, "-m", "anyformer", "explore", "--model", str(folder / "decoder"), "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(Path(anyformer.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            said = running.stdout.readline()
            address = re.findall(r"http://127\.0\.0\.1:\d+/", said)[0]
            with urllib.request.urlopen(address + "api/models", timeout=60) as answer:
                assert [one["name"] for one in json.load(answer)["models"]] == ["decoder"]
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=60)


def test_the_command_refuses_what_is_no_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anyformer", "explore", "--model", str(tmp_path), "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(Path(anyformer.__file__).parents[1])}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert run.returncode == 2 and "is not a model" in run.stderr and "Traceback" not in run.stderr
