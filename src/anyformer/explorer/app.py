"""The explorer behind its page: a model's views as JSON, over HTTP on this machine alone.

    GET  /api/models                     what there is
    GET  /api/models/ID                  what a model is: its kind, stages and parameters
    POST /api/models/ID/VIEW             a view of an input (views/__init__.py), as a `ViewRequest` in JSON

A request says everything itself, so two people never see each other's; it is bounded in size and time, and ends when
whoever asked goes away.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anyformer.errors import Error, InputError, StoppedError
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.modalities import capabilities
from anyformer.explorer.model_list import ModelList
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import VIEWS
from anyformer.layers.recurrent import AttentionRNNDecoder, RNNDecoder, RNNEncoder
from anyformer.version import __version__

STATIC = Path(__file__).parent / "static"
LARGEST = 8 * 2**20  # bytes of a request
SECONDS = 60.0
WAITING = 16  # requests at once
HOSTS = ["127.0.0.1", "localhost", "[::1]"]  # what a browser on this machine calls us; others are somebody's trick

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class TooLargeError(InputError):
    """A request with more bytes than are read."""


class Guard:
    """Our headers on every answer. Written out, because what FastAPI has for this hides that a browser has left."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, guarded if scope["type"] == "http" else send)


def make_app(shelf: ModelList, seconds: float = SECONDS, largest: int = LARGEST) -> FastAPI:
    app = FastAPI(title="anyformer explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
    app.add_middleware(Guard)
    places = asyncio.Semaphore(WAITING)

    @app.exception_handler(Error)
    async def explain(request: Request, error: Error) -> JSONResponse:
        status = 413 if isinstance(error, TooLargeError) else 408 if isinstance(error, StoppedError) else 400
        return JSONResponse({"error": str(error)}, status_code=status)

    @app.get("/api/models")
    async def models() -> dict[str, Any]:
        return {"models": [entry.to_json() for entry in shelf.entries.values()], "version": __version__}

    @app.get("/api/models/{id}")
    async def model(id: str, request: Request) -> dict[str, Any]:
        patience = Deadline(seconds)
        return await _patiently(request, patience, lambda: describe(shelf.open(id, patience)))

    @app.post("/api/models/{id}/{view}")
    async def view(id: str, view: str, request: Request) -> dict[str, Any]:
        if view not in VIEWS:
            raise InputError(f"There is no such view; there are {', '.join(VIEWS)}.")
        ask = ViewRequest.from_json(await _body(request, largest))
        patience = Deadline(seconds)
        async with places:
            return await _patiently(request, patience, lambda: answer(shelf, id, view, ask, patience))

    app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    return app


def answer(models: ModelList, id: str, view: str, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """One question at a time for each model: its taps and hooks are its own."""
    opened = models.open(id, deadline)
    deadline.acquire(opened.lock)
    try:
        return VIEWS[view](opened, request, deadline)
    finally:
        opened.lock.release()


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """What the page must know to offer the right views."""
    model = loaded.model
    return {
        "family": model.family,
        "recipe": model.origin.recipe,
        "parameters": sum(one.numel() for one in model.parameters()),
        "stages": list(model.stages),
        "text": loaded.reads_text,
        "pictures": loaded.reads_images,
        "sounds": loaded.reads_audio,
        "tokenizer": loaded.tokenizer is not None,
        "pairs": loaded.reads_pairs,
        "writes": loaded.writes,
        "continues": loaded.continues,
        "words": loaded.language is not None,
        "boxes": loaded.boxes is not None,
        "hides": loaded.pixels is not None,
        "patches": loaded.patches is not None,
        "recurs": any(isinstance(part, (RNNEncoder, AttentionRNNDecoder, RNNDecoder)) for part in model.modules()),
        "crosses": any(point.endswith(".cross.weights") for point in model.points),
        "attends": any(point.endswith(".weights") for point in model.points),
        **capabilities(loaded),
    }


async def _body(request: Request, largest: int) -> dict[str, Any]:
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise InputError("A question is JSON, with the content type application/json.")
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > largest:
            raise TooLargeError(f"A request may have {largest >> 20} MB at most; send a smaller image or text.")
    try:
        found = json.loads(content)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("The request holds half a character (a surrogate by itself).") from None
    except (ValueError, RecursionError):
        raise InputError("The request is not JSON, or is nested too deeply.") from None
    if not isinstance(found, dict):
        raise InputError("The request is JSON, but not an object.")
    return found


async def _patiently(request: Request, deadline: Deadline, work: Any) -> dict[str, Any]:
    """The work in a thread of its own, told to stop when nobody waits for it any more."""
    doing = asyncio.create_task(asyncio.to_thread(work))
    while not doing.done():
        await asyncio.wait({doing}, timeout=0.25)
        if not doing.done() and await request.is_disconnected():
            deadline.cancel()
    found: dict[str, Any] = doing.result()
    return found
