"""The same model for other inputs: with a longer or shorter word table, for images or patches of another size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer import registry
from anyformer.config import Settings
from anyformer.core.positions import InterpolatedRowColumn, LearnedGrid, interpolate_1d
from anyformer.errors import ConfigError
from anyformer.inputs.image import ImageInput, RestoreInput
from anyformer.model import Model

Size = int | tuple[int, ...]


def resize_vocabulary(model: Model, vocab_size: int) -> Model:
    """A copy of the model that knows `vocab_size` words. Those it had keep their numbers; each new one begins as the
    mean of all, which changes the probabilities of the others least (Hewitt 2021)."""
    if "vocab_size" not in model.config.field_names():
        raise ConfigError(f"A {model.family} model has no vocab_size to change.")
    if vocab_size < 1:
        raise ConfigError(f"vocab_size is {vocab_size}; it must be 1 or more.")
    words = model.config.to_json()["vocab_size"]
    kept = [i if i < words else None for i in range(vocab_size)]
    return select_vocabulary(model, model.config.replace(vocab_size=vocab_size), kept)


def select_vocabulary(model: Model, config: Settings, kept: Sequence[int | None]) -> Model:
    """A copy of the model by settings for another vocabulary: word i is what word `kept[i]` was, or is new (None)."""
    words = model.config.to_json()["vocab_size"]
    fresh, known, tables = _like(model, config), model.state_dict(), _tables(model)
    index = torch.tensor([words if i is None else i for i in kept])  # the row behind the last is the mean of all
    with torch.no_grad():
        for name, target in fresh.state_dict().items():
            old = known[name]
            if name in tables:
                old = torch.cat([old, old.mean(dim=0, keepdim=True)])[index.to(old.device)]
            if old.shape != target.shape:
                raise ConfigError(f"The tensor {name} of a {model.family} model does not follow its vocabulary.")
            target.copy_(old)
    return fresh.train(model.training)


def _tables(model: Model) -> set[str]:
    """The tensors with a row for each word: those that would be longer if there were one word more."""
    more = model.config.replace(vocab_size=model.config.to_json()["vocab_size"] + 1)
    longer = registry.build_meta(registry.family(model.family), more).state_dict()
    return {name for name, value in model.state_dict().items() if longer[name].shape != value.shape}


def _like(model: Model, config: Settings) -> Model:
    """A model with other settings on the same device, its weights still to be filled in."""
    fresh = registry.build_config(registry.family(model.family), config, model.origin.recipe)
    fresh.to(device=model.device, dtype=model.dtype)
    fresh.origin = model.origin
    return fresh


def with_size(config: Settings, size: Size, name: str = "image_size") -> Settings:
    """Settings for images, or patches, of another size, said as the family says it: one number, or rows, columns."""
    if name not in config.field_names():
        raise ConfigError(f"{type(config).__name__} has no {name} to change.")
    pair = (size, size) if isinstance(size, int) else size
    if len(pair) != 2 or min(pair) < 1:
        raise ConfigError(f"{name} is {size}; give a number of pixels, or rows and columns.")
    if not isinstance(getattr(config, name), int):
        return config.replace(**{name: pair})
    if pair[0] != pair[1]:
        raise ConfigError(f"{name} is {size}; {type(config).__name__} takes square ones.")
    return config.replace(**{name: pair[0]})


def resize_images(model: Model, image_size: Size | None = None, patch_size: Size | None = None) -> Model:
    """A copy of the model for images or patches of another size.

    Positions are interpolated as they are at run time. The matrix of the patches is resized so that an enlarged patch
    gives the token that it gave before: by the pseudo-inverse of bilinear resizing (Beyer et al. 2023, FlexiViT, §3.4).
    """
    config = model.config if image_size is None else with_size(model.config, image_size)
    config = config if patch_size is None else with_size(config, patch_size, "patch_size")
    draws = any(isinstance(module, RestoreInput) for module in model.modules())
    if draws and patch_size is not None:
        raise ConfigError(f"A {model.family} model draws patches of one size; patch_size cannot be changed.")
    fresh = _like(model, config)
    known = model.state_dict()
    with torch.no_grad():
        for path, module in model.named_modules():
            if isinstance(module, ImageInput):
                known |= _resized(module, fresh.get_submodule(path), path)  # type: ignore[arg-type]
            elif isinstance(module, RestoreInput):
                there: RestoreInput = fresh.get_submodule(path)  # type: ignore[assignment]
                known[f"{path}.positions.weight"] = there.positions.weight  # a formula's
        fresh.load_state_dict(known)
    return fresh.train(model.training)


def _resized(old: ImageInput, new: ImageInput, path: str) -> dict[str, Tensor]:
    rows, columns = new.config.grid
    made = {f"{path}.patches.weight": _patches(old, new)}
    if isinstance(old.positions, LearnedGrid):
        made[f"{path}.positions.weight"] = old.positions(rows, columns)
    elif isinstance(old.positions, InterpolatedRowColumn):
        made[f"{path}.positions.row"] = interpolate_1d(old.positions.row, rows)
        made[f"{path}.positions.column"] = interpolate_1d(old.positions.column, columns)
    return made


def _patches(old: ImageInput, new: ImageInput) -> Tensor:
    """[d, channels · new cells]"""
    have, want = tuple(old.config.patch_size), tuple(new.config.patch_size)
    weight = old.patches.weight
    if have == want:
        return weight
    cells = have[0] * have[1]
    ones = torch.eye(cells, dtype=torch.float64).view(cells, 1, *have)
    # What resizing does to a patch, as a matrix [new cells, old cells]
    matrix = F.interpolate(ones, size=want, mode="bilinear", antialias=True).flatten(1).T
    pieces = weight.double().cpu().view(len(weight), -1, cells)
    return (pieces @ torch.linalg.pinv(matrix)).flatten(1).to(weight)
