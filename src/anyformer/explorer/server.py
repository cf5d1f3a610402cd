"""`anyformer explore`: the page, on this machine's own address."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

from anyformer.errors import ConfigError
from anyformer.explorer.image_folder import ImageFolder
from anyformer.explorer.model_list import ModelList

PORT = 8017
LAST = 65_535
TRIES = 20  # ports after the usual one, where that is taken


def serve(models: Sequence[Path], port: int | None = None, browser: bool = True, images: Path | None = None) -> None:
    """Serve until interrupted. `images` is a folder that a detector's query slots are drawn over."""
    try:
        import uvicorn

        from anyformer.explorer.app import make_app
    except ImportError:
        raise ConfigError("The explorer takes FastAPI and uvicorn: pip install 'anyformer[explore]'.") from None
    shelf = ModelList.of(models) if models else ModelList.around(Path.cwd())
    shelf.gallery = None if images is None else ImageFolder.of(images)
    with free_socket(port) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        print(f"The explorer is at {address} with {len(shelf.entries)} models; Ctrl-C ends it.", flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [address]).start()
        server = uvicorn.Server(uvicorn.Config(make_app(shelf), log_level="warning", timeout_graceful_shutdown=1))
        server.run(sockets=[listening])


def free_socket(port: int | None) -> socket.socket:
    """Bound to loopback: at the port that was asked for, or at the first that is free."""
    if port is not None and not 0 <= port <= LAST:
        raise ConfigError(f"A port is a number from 0 to {LAST}; --port {port} is none.")
    wanted = range(PORT, PORT + TRIES) if port is None else [port]
    for one in wanted:
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", one))
            found.listen(128)  # from now on, so that whoever comes before the server is up is not refused
        except OSError:
            found.close()
            continue
        return found
    tried = f"{wanted[0]}" if len(wanted) == 1 else f"{wanted[0]} to {wanted[-1]}"
    raise ConfigError(f"Port {tried} is taken; choose another with --port.")
