"""Where the command `anyformer` begins: outside the package, whose import takes seconds that may be cut short."""

from __future__ import annotations

import importlib.util
import os
import sys


def main() -> None:
    """Ctrl-C ends quietly from the first moment. A shell that completes a word gets the package without its public
    names, and so without torch."""
    try:
        if "_ANYFORMER_COMPLETE" in os.environ:
            spec = importlib.util.find_spec("anyformer")
            assert spec is not None
            sys.modules["anyformer"] = importlib.util.module_from_spec(spec)
        from anyformer.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
