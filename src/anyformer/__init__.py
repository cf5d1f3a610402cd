"""anyformer: one library for every transformer, from text to images to anything."""

import importlib
from typing import TYPE_CHECKING, Any

import anyformer.recipes  # noqa: F401 - once, before the function of that name, which a later import would cover
from anyformer.checkpoints.folder import load
from anyformer.core import masks, positions
from anyformer.core import score as scores
from anyformer.core.attend import attend, attention_weights
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.stack import Stack
from anyformer.core.taps import look
from anyformer.core.tokens import Tokens
from anyformer.errors import ConfigError, DataError, Error, FolderError, InputError, WeightsError
from anyformer.forward_context import Output
from anyformer.model import Model, Stage
from anyformer.registry import build, recipes
from anyformer.training import train
from anyformer.version import __version__

try:
    importlib.import_module("anyformer.fast")
except ModuleNotFoundError as error:  # without it everything works, slower
    if error.name != "anyformer.fast":
        raise

if TYPE_CHECKING:
    import anyformer.core.norms as norms
    import anyformer.plot as plot
    import anyformer.tasks.objectives as objectives
    import anyformer.training.energy as energy
    from anyformer.config import Settings
    from anyformer.core.positions import Positions
    from anyformer.data.images.attention_maps import rollout
    from anyformer.explorer.path_length import path_length
    from anyformer.extend import register
    from anyformer.tasks import evaluate, task
    from anyformer.tasks.base import Task
    from anyformer.tokenizers.tokenizer import Tokenizer
    from anyformer.training.callbacks import Callback

# Names whose libraries load when they are first used: importing anyformer takes little longer than importing torch.
_LATER = {
    "Callback": ("anyformer.training.callbacks", "Callback"),
    "Positions": ("anyformer.core.positions", "Positions"),
    "Settings": ("anyformer.config", "Settings"),
    "Task": ("anyformer.tasks.base", "Task"),
    "Tokenizer": ("anyformer.tokenizers.tokenizer", "Tokenizer"),
    "evaluate": ("anyformer.tasks", "evaluate"),
    "energy": ("anyformer.training.energy", None),
    "norms": ("anyformer.core.norms", None),
    "objectives": ("anyformer.tasks.objectives", None),
    "path_length": ("anyformer.explorer.path_length", "path_length"),
    "plot": ("anyformer.plot", None),
    "register": ("anyformer.extend", "register"),
    "rollout": ("anyformer.data.images.attention_maps", "rollout"),
    "task": ("anyformer.tasks", "task"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'anyformer' has no attribute '{name}'")
    path, attribute = _LATER[name]
    module = importlib.import_module(path)
    return module if attribute is None else getattr(module, attribute)


__all__ = [
    "Attention",
    "AttentionConfig",
    "Block",
    "Callback",
    "ConfigError",
    "DataError",
    "Error",
    "FeedForward",
    "FeedForwardConfig",
    "FolderError",
    "InputError",
    "Model",
    "Output",
    "Positions",
    "Settings",
    "Stack",
    "Stage",
    "Sublayer",
    "Task",
    "Tokenizer",
    "Tokens",
    "WeightsError",
    "__version__",
    "attend",
    "attention_weights",
    "build",
    "energy",
    "evaluate",
    "load",
    "look",
    "masks",
    "norms",
    "objectives",
    "path_length",
    "plot",
    "positions",
    "recipes",
    "register",
    "rollout",
    "scores",
    "task",
    "train",
]
