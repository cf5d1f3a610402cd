"""The HTTP server of the explorer: views of a model as JSON, on the loopback interface only.

    GET  /api/models                     the list of models
    GET  /api/models/ID                  a description of a model: family, stages, parameters, modalities
    POST /api/models/ID/VIEW             a view (views/__init__.py) of the input in a JSON `ViewRequest`

Requests are stateless. Their size and time are limited, and work is canceled when the client disconnects.
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
MAX_REQUEST_BYTES = 8 * 2**20
TIMEOUT_SECONDS = 60.0
MAX_CONCURRENT_REQUESTS = 16
HOSTS = ["127.0.0.1", "localhost", "[::1]"]  # other host names are rejected (DNS rebinding)

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class TooLargeError(InputError):
    """Raised for a request body above the size limit."""


class SecurityHeaders:
    """ASGI middleware that adds security headers. FastAPI's own middleware hides client disconnects."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, guarded if scope["type"] == "http" else send)


def make_app(models: ModelList, seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_REQUEST_BYTES) -> FastAPI:
    """Create the FastAPI app. `seconds` is the time limit and `max_bytes` the size limit of a request."""
    app = FastAPI(title="anyformer explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
    app.add_middleware(SecurityHeaders)
    slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    @app.exception_handler(Error)
    async def explain(request: Request, error: Error) -> JSONResponse:
        status = 413 if isinstance(error, TooLargeError) else 408 if isinstance(error, StoppedError) else 400
        return JSONResponse({"error": str(error)}, status_code=status)

    @app.get("/api/models")
    async def list_models() -> dict[str, Any]:
        return {"models": [entry.to_json() for entry in models.entries.values()], "version": __version__}

    @app.get("/api/models/{id}")
    async def model(id: str, request: Request) -> dict[str, Any]:
        deadline = Deadline(seconds)
        return await _run(request, deadline, lambda: describe(models.open(id, deadline)))

    @app.post("/api/models/{id}/{view}")
    async def view(id: str, view: str, request: Request) -> dict[str, Any]:
        if view not in VIEWS:
            raise InputError(f"Unknown view; expected one of {', '.join(VIEWS)}.")
        body = ViewRequest.from_json(await _body(request, max_bytes))
        deadline = Deadline(seconds)
        async with slots:
            return await _run(request, deadline, lambda: answer(models, id, view, body, deadline))

    app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    return app


def answer(models: ModelList, id: str, view: str, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Compute a view. Each model handles one request at a time, because its taps and hooks are shared."""
    opened = models.open(id, deadline)
    deadline.acquire(opened.lock)
    try:
        return VIEWS[view](opened, request, deadline)
    finally:
        opened.lock.release()


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """The description of a model from which the page chooses the views to offer."""
    model = loaded.model
    return {
        "family": model.family,
        "recipe": model.origin.recipe,
        "parameters": sum(one.numel() for one in model.parameters()),
        "stages": list(model.stages),
        "text": loaded.reads_text,
        "images": loaded.reads_images,
        "audio": loaded.reads_audio,
        "tokenizer": loaded.tokenizer is not None,
        "text_pairs": loaded.reads_pairs,
        "encoder_decoder": loaded.encoder_decoder,
        "decoder_only": loaded.decoder_only,
        "language_head": loaded.language is not None,
        "boxes": loaded.boxes is not None,
        "reconstruction": loaded.pixels is not None,
        "patches": loaded.patches is not None,
        "recurrent": any(isinstance(part, (RNNEncoder, AttentionRNNDecoder, RNNDecoder)) for part in model.modules()),
        "cross_attention": any(point.endswith(".cross.weights") for point in model.points),
        "attention": any(point.endswith(".weights") for point in model.points),
        **capabilities(loaded),
    }


async def _body(request: Request, max_bytes: int) -> dict[str, Any]:
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise InputError("The request must be JSON with the content type application/json.")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > max_bytes:
            raise TooLargeError(f"The request is larger than {max_bytes >> 20} MB; send a smaller image or text.")
    try:
        found = json.loads(content)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("The request contains an unpaired surrogate character.") from None
    except (ValueError, RecursionError):
        raise InputError("The request is not valid JSON or is nested too deeply.") from None
    if not isinstance(found, dict):
        raise InputError("The request must be a JSON object.")
    return found


async def _run(request: Request, deadline: Deadline, work: Any) -> dict[str, Any]:
    """Run `work` in a thread; cancel the deadline when the client disconnects."""
    task = asyncio.create_task(asyncio.to_thread(work))
    while not task.done():
        await asyncio.wait({task}, timeout=0.25)
        if not task.done() and await request.is_disconnected():
            deadline.cancel()
    found: dict[str, Any] = task.result()
    return found
