"""Chat templates: render conversations as text with the model's own Jinja template.

A template is code from whoever made the folder. It runs in jinja2's sandbox, in a separate process with limits on time,
memory and output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.errors import FolderError, InputError

Message = Mapping[str, Any]

SECONDS = 5
MEMORY = 1 << 30
OUTPUT = 4_000_000  # maximum number of characters per conversation


def render(template: str, conversations: Sequence[Sequence[Message]], **variables: Any) -> list[str]:
    """Return each conversation as text in the model's chat format."""
    for messages in conversations:
        check(messages)
    request = {
        "template": template,
        "variables": [
            {"tools": None, "documents": None, "messages": [dict(m) for m in messages], **variables}
            for messages in conversations
        ],
        "path": [entry for entry in sys.path if entry],
        "seconds": _seconds(len(conversations)),
        "memory": MEMORY,
        "output": OUTPUT,
    }
    try:
        body = json.dumps(request).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"The messages must hold JSON values only: {error}.") from None
    return _read(_run(body, _seconds(len(conversations))))


def check(messages: Sequence[Message]) -> None:
    if isinstance(messages, (str, Mapping)) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise InputError('A conversation must be a list of messages such as {"role": "user", "content": "Hello"}.')
    if not messages:
        raise InputError("The conversation is empty; give at least one message.")


def _seconds(conversations: int) -> int:
    return SECONDS + conversations // 500


def _run(body: bytes, seconds: int) -> subprocess.CompletedProcess[bytes]:
    script = Path(__file__).with_name("render_template.py")
    try:
        # -I ignores the user's environment and folder; 2 more seconds for the interpreter to start
        return subprocess.run(
            [sys.executable, "-I", str(script)], input=body, capture_output=True, timeout=seconds + 2, check=False
        )
    except subprocess.TimeoutExpired:
        raise FolderError(_sentence("time")) from None


def _read(run: subprocess.CompletedProcess[bytes]) -> list[str]:
    if run.returncode < 0:  # killed by a resource limit
        raise FolderError(_sentence("time"))
    try:
        answer = json.loads(run.stdout)
    except ValueError:
        raise FolderError(_sentence("memory")) from None
    if "texts" in answer:
        return list(answer["texts"])
    raise FolderError(_sentence(answer["problem"], answer.get("says", "")))


def _sentence(problem: str, says: str = "") -> str:
    reasons = {
        "time": f"it ran for more than {SECONDS} seconds",
        "memory": f"it needed more than {MEMORY >> 20:,} MB of memory",
        "output": f"it wrote more than {OUTPUT:,} characters",
        "recursion": "it calls itself without limit",
    }
    return f"The chat template was stopped: {reasons.get(problem) or says.rstrip('.')}."
