"""A folder that holds only what differs from another model, its base: new tensors whole, and for a matrix that training
moved a little, two thin ones whose product is added to it: "x.weight.a" [rank, columns] and "x.weight.b" [rows, rank].

For a run with adapters that is exact; for one that moved whole matrices it is the nearest of its rank.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from anyformer.core.init import materialise
from anyformer.core.taps import brief
from anyformer.errors import WeightsError
from anyformer.model import Model
from anyformer.weights.files import list_tensors, read_tensors

A, B = ".a", ".b"
EXACT = 1e-4  # of the largest singular value: below is rounding, and no part of the rank


def own_tensors(model: Model) -> dict[str, Tensor]:
    """Every parameter and buffer by its brief name, tied ones once."""
    names: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in seen:
            names[brief(path)] = tensor.detach()
            seen.add(id(tensor))
    return names


def difference(model: Model, base: Model, rank: int) -> dict[str, Tensor]:
    """What `complete` needs to make `model` of `base` again, matrices by `rank` at most."""
    before = own_tensors(base)
    found: dict[str, Tensor] = {}
    for name, tensor in own_tensors(model).items():
        old = before.get(name)
        if old is None or old.shape != tensor.shape:
            found[name] = tensor
        elif not torch.equal(old, tensor):
            thin = None if tensor.dim() != 2 else factors(tensor.float() - old.float(), rank)
            if thin is None:
                found[name] = tensor
            else:
                found[name + A], found[name + B] = thin
    return found


def factors(change: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """a and b with b @ a nearest to a change; None where they would be no smaller."""
    left, size, right = torch.linalg.svd(change, full_matrices=False)
    kept = min(rank, int((size > EXACT * size[0]).sum()))
    if kept * sum(change.shape) >= change.numel():
        return None
    root = size[:kept].sqrt()
    return (root[:, None] * right[:kept]).contiguous(), (left[:, :kept] * root).contiguous()


def complete(model: Model, base: Model, folder: Path, device: str | torch.device, dtype: torch.dtype) -> None:
    """Fill a model on the meta device from its base and the difference in the folder."""
    stored = list_tensors(folder)
    before = own_tensors(base)
    wanted = own_tensors(model)
    changed = {name.removesuffix(A) for name in stored if name.endswith(A) and name.removesuffix(A) in wanted}
    extra = sorted(set(stored) - set(wanted) - {name + end for name in changed for end in (A, B)})
    missing = [name for name in wanted if name not in stored and _shape(before.get(name)) != _shape(wanted[name])]
    missing += [name + B for name in changed if name + B not in stored]
    if missing or extra:
        raise WeightsError(f"The weights in {folder} do not fit its base: {', '.join([*missing, *extra])}.")
    held = {one.name: tensor.clone() for one, tensor in read_tensors(stored.values())}
    materialise(model, device, dtype)
    with torch.no_grad():
        for name, place in own_tensors(model).items():
            place.copy_(held[name].view(place.shape) if name in held else before[name])
            if name in changed:
                place.add_((held[name + B].float() @ held[name + A].float()).to(place))


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
