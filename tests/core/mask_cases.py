"""Every mask with its meaning written again as a plain Python rule, for the suites of masks.py and attend.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.masks import (
    NO_MASK,
    Causal,
    Dense,
    Dilated,
    DocumentMask,
    Local2D,
    Mask,
    NoMask,
    PackedMask,
    Padding,
    PositionMask,
    Prefix,
    ShiftedMask,
    StaticCacheMask,
    Window,
)
from anyformer.core.packing import Packing
from anyformer.layers.raster import BlockLocal2D, Raster

Rule = Callable[[int, int, int], bool]  # (row of the batch, index of the query, index of the key) -> may attend

BATCH = 2
LENGTH = 12  # no shape below goes past it


@dataclass(frozen=True)
class Case:
    """A mask and its rule. `kinds` names the classes it is made of."""

    name: str
    mask: Mask
    rule: Rule
    kinds: tuple[type[Mask], ...]

    def table(self, n_query: int, n_key: int, offset: int = 0, batch: int = BATCH) -> Tensor:
        """[batch, n_query, n_key], cell by cell."""
        rows = range(batch)
        queries = range(offset, offset + n_query)
        return torch.tensor([[[self.rule(b, i, j) for j in range(n_key)] for i in queries] for b in rows]).view(
            batch, n_query, n_key
        )


REAL = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]).bool()
EMPTY = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1], [0] * 12]).bool()  # the second row has no real token
DOCUMENT = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3], [7, 7, 7, 7, 7, 7, 5, 5, 5, 5, 9, 9]])
ABSENT = torch.where(DOCUMENT == 2, 8, DOCUMENT)  # the queries of document 2 find no key of theirs
LENGTHS = torch.tensor([3, 6])
ANY = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.4


def _causal(b: int, i: int, j: int) -> bool:
    return j <= i


def _window(left: int, right: int) -> Rule:
    return lambda b, i, j: i - left <= j <= i + right


def _padding(real: Tensor) -> Rule:
    return lambda b, i, j: bool(real[b, j])


def _both(*rules: Rule) -> Rule:
    return lambda b, i, j: all(rule(b, i, j) for rule in rules)


def _either(*rules: Rule) -> Rule:
    return lambda b, i, j: any(rule(b, i, j) for rule in rules)


def _local(b: int, i: int, j: int) -> bool:  # on an image of width 4: 1 row up or down, 2 columns aside
    (y, x), (v, u) = divmod(i, 4), divmod(j, 4)
    return abs(y - v) <= 1 and abs(x - u) <= 2


def _blocks_1d(b: int, i: int, j: int) -> bool:  # blocks of 4, and 3 before each
    return i // 4 * 4 - 3 <= j < i // 4 * 4 + 4 + 3


# An image of 4 columns in blocks of 1 x 2 cells, 1 token a cell: where each of 12 tokens stands, by hand.
_CELLS = [(i // 4, i % 4) for i in range(12)]
# And one of 4 columns in blocks of 2 x 2: the first block's four, then those of the block to its right, then below.
_TALL = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)]


def _blocks(cells: list[tuple[int, int]], rows: int, above: int, aside: int) -> Rule:
    def rule(b: int, i: int, j: int) -> bool:
        (y, x), (v, u) = cells[i], cells[j]
        top, left = y - y % rows, x - x % 2
        return top - above <= v < top + rows and left - aside <= u < left + 2 + aside

    return rule


def _deep(b: int, i: int, j: int) -> bool:  # 2 tokens a cell, blocks of 1 x 2 cells, 4 columns; 1 row up, 1 aside
    return _blocks(_CELLS, 1, 1, 1)(b, i // 2, j // 2)


def _prefix(b: int, i: int, j: int) -> bool:
    return j < int(LENGTHS[b])


def _documents(b: int, i: int, j: int) -> bool:
    return bool(DOCUMENT[b, i] == DOCUMENT[b, j])


PLACES = REAL.cumsum(dim=1) - 1


def _placed(b: int, i: int, j: int) -> bool:  # at most 2 real tokens back, whatever stands between
    return 0 <= int(REAL[b, : i + 1].sum()) - int(REAL[b, : j + 1].sum()) <= 2


FIRST, COLUMN = torch.tensor([0, 5]), torch.tensor([7])


def _filled(span: int) -> Rule:  # whoever asks is the last column
    return lambda b, i, j: max((0, 5)[b], 7 - span) <= j <= 7


def _dilated(b: int, i: int, j: int) -> bool:
    return j in (i - 6, i - 3, i, i + 3, i + 6)


MASKS = [
    Case("everything", NO_MASK, lambda b, i, j: True, (NoMask,)),
    Case("causal", Causal(), _causal, (Causal,)),
    Case("window", Window(3), _window(3, 0), (Window,)),
    Case("window, both sides", Window(1, 2), _window(1, 2), (Window,)),
    Case("window, only ahead", Window(0, 2), _window(0, 2), (Window,)),
    Case("dilated", Dilated(3, 2), _dilated, (Dilated,)),
    Case("local 2D", Local2D(4, 1, 2), _local, (Local2D,)),
    Case("blocks in a line", BlockLocal2D(Raster(1, 4), 0, 3), _blocks_1d, (BlockLocal2D,)),
    Case("flat blocks", BlockLocal2D(Raster(1, 2, 2), 1, 1), _blocks(_CELLS, 1, 1, 1), (BlockLocal2D,)),
    Case("blocks", BlockLocal2D(Raster(2, 2, 2), 1, 1), _blocks(_TALL, 2, 1, 1), (BlockLocal2D,)),
    Case("blocks of deep cells", BlockLocal2D(Raster(1, 2, 2, 2), 1, 1), _deep, (BlockLocal2D,)),
    Case(
        "causal & blocks & padding",
        Causal() & BlockLocal2D(Raster(2, 2, 2), 2, 2) & Padding(REAL),
        _both(_causal, _blocks(_TALL, 2, 2, 2), _padding(REAL)),
        (Causal, BlockLocal2D, Padding),
    ),
    Case(
        "causal & blocks in a line",
        Causal() & BlockLocal2D(Raster(1, 4), 0, 3),
        _both(_causal, _blocks_1d),
        (Causal, BlockLocal2D),
    ),
    Case(
        "blocks, the first forgotten",
        ShiftedMask(BlockLocal2D(Raster(1, 4), 0, 3), 5),
        lambda b, i, j: _blocks_1d(b, i + 5, j + 5),
        (ShiftedMask,),
    ),
    Case("padding", Padding(REAL), _padding(REAL), (Padding,)),
    Case("padding, a row of nothing else", Padding(EMPTY), _padding(EMPTY), (Padding,)),
    Case("filled columns", StaticCacheMask(FIRST, COLUMN), _filled(12), (StaticCacheMask,)),
    Case("filled columns, a window", StaticCacheMask(FIRST, COLUMN, 3), _filled(3), (StaticCacheMask,)),
    Case(
        "filled columns, blocks",
        StaticCacheMask(FIRST, COLUMN, own=Causal() & BlockLocal2D(Raster(1, 4), 0, 1)),
        lambda b, i, j: _filled(12)(b, i, j) and (3, 5)[b] <= j,  # row 0: number 7, after 3; row 1: number 2, all
        (StaticCacheMask,),
    ),
    Case("documents", DocumentMask(DOCUMENT, DOCUMENT), _documents, (DocumentMask,)),
    Case(
        "documents, one without keys",
        DocumentMask(ABSENT, DOCUMENT),
        lambda b, i, j: bool(ABSENT[b, i] == DOCUMENT[b, j]),
        (DocumentMask,),
    ),
    Case("prefix", Prefix(4), lambda b, i, j: j < 4, (Prefix,)),
    Case("prefix of its own a row", Prefix(LENGTHS), _prefix, (Prefix,)),
    Case("causal | prefix", Causal() | Prefix(LENGTHS), _either(_causal, _prefix), (Causal, Prefix)),
    Case("causal & padding", Causal() & Padding(REAL), _both(_causal, _padding(REAL)), (Causal, Padding)),
    Case(
        "causal & window & padding",
        Causal() & Window(4, 2) & Padding(EMPTY),
        _both(_causal, _window(4, 2), _padding(EMPTY)),
        (Causal, Window, Padding),
    ),
    Case(
        "(causal | prefix) & padding",
        (Causal() | Prefix(4)) & Padding(REAL),
        _both(_either(_causal, lambda b, i, j: j < 4), _padding(REAL)),
        (Causal, Prefix, Padding),
    ),
    Case(
        "documents & causal",
        DocumentMask(DOCUMENT, DOCUMENT) & Causal(),
        _both(_documents, _causal),
        (DocumentMask, Causal),
    ),
    Case("window counted in real tokens", PositionMask(Causal() & Window(2), PLACES), _placed, (PositionMask,)),
    Case("dense", Dense(ANY), lambda b, i, j: bool(ANY[b, 0, i, j]), (Dense,)),
    Case(
        "dense & window",
        Dense(ANY) & Window(5, 1),
        _both(lambda b, i, j: bool(ANY[b, 0, i, j]), _window(5, 1)),
        (Dense,),
    ),
]


@dataclass(frozen=True)
class PackedCase:
    """Packed queries and keys, and the rule of what else must hold, which counts within the row."""

    name: str
    query: Tensor  # [B, Q], which tokens are real
    key: Tensor  # [B, K]
    rest: Mask
    rule: Rule

    @property
    def packed(self) -> PackedMask:
        return PackedMask(Packing.of(self.query), Packing.of(self.key))

    @property
    def mask(self) -> Mask:
        return self.rest & self.packed

    def table(self) -> Tensor:
        """[N queries, N keys], cell by cell."""
        queries, keys = _places(self.query), _places(self.key)
        cells = [[b == c and self.rule(b, i, j) for c, j in keys] for b, i in queries]
        return torch.tensor(cells, dtype=torch.bool).view(len(queries), len(keys))


def _places(real: Tensor) -> list[tuple[int, int]]:
    """(row, place within the row) of every packed token."""
    return [(b, i) for b, n in enumerate(real.sum(1).tolist()) for i in range(n)]


def _flags(*rows: str) -> Tensor:
    return torch.tensor([[flag == "1" for flag in row] for row in rows])


_RIGHT = _flags("111111", "110000", "111100")
_LEFT = _flags("001111", "111111", "000001")
_INNER = _flags("101101", "110011", "010100")
_GAPPED = _flags("11100", "00000", "01111")  # the second row is empty
_EVEN = _flags("0111", "1110", "1011")
_NOTHING = _flags("000", "000", "000")

_SIDES = {
    "right": (_RIGHT, _RIGHT),
    "left": (_LEFT, _LEFT),
    "inner": (_INNER, _INNER),
    "equal rows": (_EVEN, _EVEN),
    "an empty row": (_GAPPED, _GAPPED),
    "crossed": (_RIGHT, _GAPPED),  # a row with queries and no keys
    "crossed back": (_GAPPED, _LEFT),  # a row with keys and no queries
    "crossed, equal rows": (_EVEN, _flags("11110", "01111", "11011")),
    "no keys": (_EVEN, _NOTHING),
    "nothing at all": (_NOTHING, _NOTHING),
}

_RESTS: dict[str, tuple[Mask, Rule]] = {
    "alone": (NO_MASK, lambda b, i, j: True),
    "causal": (Causal(), _causal),
    "window": (Window(1, 1), _window(1, 1)),
    "causal & window": (Causal() & Window(2, 1), _both(_causal, _window(2, 1))),
    "dilated": (Dilated(2, 1), lambda b, i, j: j in (i - 2, i, i + 2)),
}

PACKED = [
    PackedCase(f"packed {side}, {rest}", query, key, mask, rule)
    for side, (query, key) in _SIDES.items()
    for rest, (mask, rule) in _RESTS.items()
]
