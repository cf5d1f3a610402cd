"""The oracle of the recurrent family that has a Hugging Face class."""

from __future__ import annotations

from typing import Any

HOMES = {"Mamba": "mamba"}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "Mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "vocab_size": 60}),
}
ARCHITECTURES = ("MambaForCausalLM",)
TEXT = ("Mamba",)  # families whose batch is one text
LABELED = ("MambaForCausalLM",)  # architectures whose labels are the text itself
