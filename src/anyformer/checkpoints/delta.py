"""A folder that holds only what differs from another model, its base.

New tensors stand there whole, and so do small ones that moved. A matrix that training moved is stored as its move: as
two thin ones whose product it is, "x.weight.a" [rank, columns] and "x.weight.b" [rows, rank], where it has a low rank,
as that of an adapter has; else in 4 bits a number, two in a byte of "x.weight.steps", with a scale for each row,
"x.weight.scale", for the rows that moved at all, "x.weight.rows". A move is small beside the matrix, so that its 4 bits
are worth more than those of the matrix would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from anyformer.checkpoints.files import StoredTensor, check_fit, list_own, read_tensors
from anyformer.core.init import materialize
from anyformer.errors import WeightsError
from anyformer.model import Model
from anyformer.upgrades import tensor_name

A, B, STEPS, SCALE, ROWS = ".a", ".b", ".steps", ".scale", ".rows"
EXACT = 1e-4  # of the largest singular value: below is rounding, and no part of the rank
SMALL = 4096  # numbers: a tensor with fewer is not worth the trouble
FARTHEST = 7  # steps from zero, either way


def own_tensors(model: Model) -> dict[str, Tensor]:
    """Every parameter and buffer by its brief name, tied ones once."""
    names: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in seen:
            names[path] = tensor.detach()
            seen.add(id(tensor))
    return names


def compute_delta(model: Model, base: Model) -> dict[str, Tensor]:
    """What `complete` needs to make `model` of `base` again."""
    before = own_tensors(base)
    found: dict[str, Tensor] = {}
    for name, tensor in own_tensors(model).items():
        old = before.get(name)
        if old is None or old.shape != tensor.shape:
            found[name] = tensor
        elif not torch.equal(old, tensor):
            found |= {name + end: part for end, part in encode_change(tensor, old).items()}
    return found


def encode_change(now: Tensor, before: Tensor) -> dict[str, Tensor]:
    """From one tensor to another, in the parts that take least."""
    if now.dim() != 2 or now.numel() < SMALL:
        return {"": now}
    change = now.float() - before.float()
    thin = low_rank_factors(change)
    return quantize_rows(change) if thin is None else {A: thin[0], B: thin[1]}


def low_rank_factors(change: Tensor) -> tuple[Tensor, Tensor] | None:
    """a and b whose product b @ a a change is; None where steps would take less, with 2 bytes for each number of a and
    b, and half a byte for each step."""
    left, size, right = torch.linalg.svd(change, full_matrices=False)
    rank = int((size > EXACT * size[0]).sum())
    if 2 * rank * sum(change.shape) >= change.numel() / 2:
        return None
    root = size[:rank].sqrt()
    return (root[:, None] * right[:rank]).contiguous(), (left[:, :rank] * root).contiguous()


def quantize_rows(change: Tensor) -> dict[str, Tensor]:
    """Each row as whole steps, from -7 to 7 of a seventh of its largest number."""
    rows = change.abs().amax(dim=1).nonzero().flatten()
    moved = change[rows]
    scale = moved.abs().amax(dim=1) / FARTHEST
    counts = (moved / scale[:, None]).round().clamp(-FARTHEST, FARTHEST).to(torch.int8) + 8  # 1 … 15
    counts = torch.nn.functional.pad(counts, (0, counts.shape[1] % 2), value=8).to(torch.uint8)
    packed = counts[:, 0::2] | counts[:, 1::2] << 4
    return {STEPS: packed, SCALE: scale, ROWS: rows.to(torch.int32)}


def apply_change(name: str, held: Mapping[str, Tensor], place: Tensor) -> None:
    """Add to a matrix what a folder holds of its move."""
    if name + A in held:
        place.add_((held[name + B].float() @ held[name + A].float()).to(place))
        return
    packed = held[name + STEPS]
    counts = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)[:, : place.shape[1]].float() - 8
    change = counts * held[name + SCALE].float()[:, None]
    place.index_add_(0, held[name + ROWS].long().to(place.device), change.to(place))


def apply_delta(model: Model, base: Model, folder: Path, device: str | torch.device, dtype: torch.dtype) -> None:
    """Fill a model on the meta device from its base and the difference in the folder."""
    stored = list_own(folder)
    before, wanted = own_tensors(base), own_tensors(model)
    needs = {name: parts for name in wanted if (parts := _parts(name, stored))}
    missing = [part for parts in needs.values() for part in parts if part not in stored]
    missing += [name for name in wanted if name not in stored and _shape(before.get(name)) != _shape(wanted[name])]
    extra = sorted(set(stored) - set(wanted) - {part for parts in needs.values() for part in parts})
    check_fit(folder, missing, extra, what="base")
    places = {name: tensor.shape for name, tensor in wanted.items() if name in stored or name in needs}
    wrong = [text for name, shape in places.items() for text in _misfits(name, needs.get(name, []), stored, shape)]
    check_fit(folder, wrong=wrong)
    held = {tensor_name(one.name): tensor.clone() for one, tensor in read_tensors(stored.values())}
    materialize(model, device, dtype)
    with torch.no_grad():
        for name, place in own_tensors(model).items():
            place.copy_(held[name].view(place.shape) if name in held else before[name])
            if name in needs:
                _check_rows(folder, name, held, len(place))
                apply_change(name, held, place)


def _misfits(name: str, parts: list[str], stored: Mapping[str, StoredTensor], shape: Sequence[int]) -> Iterator[str]:
    """The tensors of a place that do not fit it, with what they are."""
    if name in stored and torch.Size(stored[name].shape).numel() != torch.Size(shape).numel():
        yield f"{name} {list(stored[name].shape)}, expected {list(shape)}"
    held = [stored[part].shape for part in parts]
    if parts and held != _shapes(parts, held[0][:1], shape):
        yield f"{' and '.join(parts)} {[list(one) for one in held]}, for a place of {list(shape)}"
    if name + STEPS in parts and stored[name + STEPS].dtype != torch.uint8:
        yield f"{name}{STEPS} as {stored[name + STEPS].dtype}, expected uint8"


def _shapes(parts: list[str], n: tuple[int, ...], shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Of a move's parts, where n is the rank or the number of rows that moved; none fit a place that is no matrix."""
    if len(shape) != 2:
        return []
    rows, columns = shape
    return [(*n, columns), (rows, *n)] if len(parts) == 2 else [(*n, (columns + 1) // 2), n, n]


def _check_rows(folder: Path, name: str, held: Mapping[str, Tensor], count: int) -> None:
    rows = held.get(name + ROWS, torch.zeros(0)).long()
    if bool(((rows < 0) | (rows >= count)).any()):
        raise WeightsError(f"{name}{ROWS} in {folder} must hold rows of a matrix that has {count:,}.")


def _parts(name: str, stored: Mapping[str, object]) -> list[str]:
    """The tensors that a matrix's move must consist of, if any of them is there."""
    for ends in ((A, B), (STEPS, SCALE, ROWS)):
        if any(name + end in stored for end in ends):
            return [name + end for end in ends]
    return []


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
