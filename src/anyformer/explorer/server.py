"""The server of `anyformer explore`, on the loopback interface."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

from anyformer.device import choose_device
from anyformer.errors import ConfigError
from anyformer.explorer.image_folder import ImageFolder
from anyformer.explorer.model_list import ModelList

PORT = 8017
MAX_PORT = 65_535
PORT_TRIES = 20  # number of ports to try from PORT on


def serve(
    models: Sequence[Path],
    port: int | None = None,
    browser: bool = True,
    images: Path | None = None,
    device: str = "auto",
) -> None:
    """Serve until interrupted. `device` is where models generate; the views are computed on the CPU. `images` is a
    folder of images for the view of query boxes."""
    try:
        import uvicorn

        from anyformer.explorer.app import make_app
    except ImportError:
        raise ConfigError("The explorer needs FastAPI and uvicorn: pip install 'anyformer[explore]'.") from None
    model_list = ModelList.of(models) if models else ModelList.around(Path.cwd())
    model_list.device = choose_device(device)
    model_list.gallery = None if images is None else ImageFolder.of(images)
    with free_socket(port) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        n = len(model_list.entries)
        print(f"Explorer running at {address} with {n} model{'s' * (n != 1)} (press Ctrl-C to quit)", flush=True)
        print(f"device: {model_list.device}", flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [address]).start()
        server = uvicorn.Server(uvicorn.Config(make_app(model_list), log_level="warning", timeout_graceful_shutdown=1))
        server.run(sockets=[listening])


def free_socket(port: int | None) -> socket.socket:
    """A listening socket on the loopback interface, at `port` or at the first free port from PORT on."""
    if port is not None and not 0 <= port <= MAX_PORT:
        raise ConfigError(f"--port is {port}; expected a number from 0 to {MAX_PORT}.")
    wanted = range(PORT, PORT + PORT_TRIES) if port is None else [port]
    for one in wanted:
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", one))
            found.listen(128)  # early, so that connections before the start of the server are queued
        except OSError:
            found.close()
            continue
        return found
    tried = f"{wanted[0]}" if len(wanted) == 1 else f"{wanted[0]} to {wanted[-1]}"
    raise ConfigError(f"Port {tried} is in use; choose another with --port.")
