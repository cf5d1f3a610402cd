"""Hides anyformer.fast from the import system: `python -m pytest -p tests.fast.without_fast …`, or as a script.

As a script it writes outputs, generated ids and training losses of tiny recipes into a file, as they are without it.
"""

from __future__ import annotations

import sys

sys.modules["anyformer.fast"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    from safetensors.torch import save_file

    import anyformer.core.rewrites as rewrites
    from tests.fast.numbers import numbers

    assert not rewrites.RULES, "anyformer.fast was imported"
    save_file(numbers(), sys.argv[1])
