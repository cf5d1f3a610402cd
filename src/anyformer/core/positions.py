"""Position encodings.

A position encoding fills some of three slots. Calling it on tokens returns vectors: added to the tokens at the input,
or in every layer to queries and keys, never to values (DETR). `rotate` rotates queries and keys (rotary). `bias`
returns a term of the scores, which may depend on the query (Transformer-XL) or be shared by a whole stack (T5); it is
what calling such an encoding returns. The last two belong to an `Encoding`, which `prepare` computes once
a pass: it travels with the tokens through the stack.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.host import is_capturing, widest
from anyformer.core.linear import Linear
from anyformer.core.rope import RopeConfig
from anyformer.core.tokens import Tokens
from anyformer.errors import ConfigError, InputError

SinusoidLayout = Literal["halves", "interleaved", "stretched"]


def sinusoids(
    positions: Tensor,
    d_model: int,
    layout: SinusoidLayout = "interleaved",
    base: float = 10_000.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """sin and cos of position / base^(2i/d), i from 0 (Vaswani et al. 2017, §3.5), computed in `dtype` (None: the
    widest that the device has).

    "interleaved": sin and cos alternate, as in the paper. "halves": first all sines, then all cosines; the
    same up to a fixed reordering of the features. "stretched": as "halves", with the lowest frequency at exactly
    1 / base, as in the authors' code.
    """
    dtype = widest(positions.device) if dtype is None else dtype
    last = d_model - 2 if layout == "stretched" else d_model
    wavelengths = base ** (torch.arange(0, d_model, 2, dtype=dtype, device=positions.device) / last)
    return sin_and_cos(positions.to(dtype).unsqueeze(-1) / wavelengths, layout)[..., :d_model]


def sin_and_cos(angles: Tensor, layout: SinusoidLayout) -> Tensor:
    """Sines and cosines of angles [..., n] as features [..., 2n]."""
    if layout == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def sinusoids_2d(rows: int, columns: int, d_model: int) -> Tensor:
    """MAE's fixed table [rows·columns, d]: the first half of the features encodes the column, the second the row."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.cat([sinusoids(axis.flatten(), d_model // 2, "halves") for axis in (x, y)], dim=-1)


def _check_width(kind: str, width: int, factor: int) -> None:
    """Raise ConfigError if the width is not a multiple of `factor`, which vectors of this kind need."""
    if width % factor:
        raise ConfigError(f"{kind} need a width that is a multiple of {factor}, not {width}.")


class Encoding:
    """The values that a position encoding computed for one pass. The base class changes nothing."""

    def rotate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate queries, keys and values [B, H, T, d] by the positions of the pass."""
        return query, key, value

    def bias(self, query: Tensor, key: Tensor, offset: int, scale: float) -> Tensor | None:
        """A term of the scores that broadcasts to [B, H, Q, K]; the first query is key number `offset`."""
        return None


class Positions(nn.Module):
    """Base class of all position encodings. By itself it is the encoding "none"."""

    has_bias = False  # whether its encodings have a bias
    max_positions: int | None = None  # the largest number of positions; None if unlimited

    def forward(self, *given: Any, **options: Any) -> Any:
        """The vectors, or the term of the scores; None if there are none."""
        return None

    def prepare(self, tokens: Tokens) -> Encoding | None:
        """Compute what attention needs in this pass; None if it needs nothing."""
        return None

    @property
    def shared_key(self) -> Any:
        """Equal for encodings that compute the same values, so that a stack prepares only one of them."""
        return self


class BiasEncoding(Encoding):
    """The bias of a position encoding, for tokens of one grid."""

    def __init__(self, positions: BiasedPositions, grid: tuple[int, ...] | None) -> None:
        self.positions, self.grid = positions, grid

    def bias(self, query: Tensor, key: Tensor, offset: int, scale: float) -> Tensor | None:
        found: Tensor = self.positions(query, key, offset, scale, self.grid)
        return found


class BiasedPositions(Positions):
    """Base class of encodings that add a bias to the scores."""

    has_bias = True

    def prepare(self, tokens: Tokens) -> Encoding:
        return BiasEncoding(self, tokens.grid)

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        """As `Encoding.bias`."""
        raise NotImplementedError


class Sinusoidal(Positions):
    """Sinusoids computed at each pass, for any length."""

    def __init__(self, d_model: int, layout: SinusoidLayout = "interleaved") -> None:
        super().__init__()
        self.d_model = d_model
        self.layout: SinusoidLayout = layout

    def forward(self, tokens: Tokens) -> Tensor:
        return sinusoids(positions_of(tokens), self.d_model, self.layout).to(tokens.x.dtype)


class LearnedPositions(Positions):
    """A learned vector for each of `n` positions; with `fixed`, initialized by a formula and not trained."""

    def __init__(self, n: int, d_model: int, fixed: SinusoidLayout | None = None) -> None:
        super().__init__()
        if fixed is not None:
            _check_width("Sinusoidal positions", d_model, 2)
        self.max_positions = n
        self.weight = nn.Parameter(torch.empty(n, d_model), requires_grad=fixed is None)
        self.fixed: SinusoidLayout | None = fixed

    def reset(self, std: float) -> None:
        if self.fixed is None:
            nn.init.normal_(self.weight, std=std)
        else:
            values = sinusoids(torch.arange(self.weight.shape[0]), self.weight.shape[1], self.fixed)
            self.weight.data.copy_(values)

    def forward(self, tokens: Tokens) -> Tensor:
        at = positions_of(tokens)
        n = self.weight.shape[0]
        longest = tokens.x.shape[-2] if tokens.positions is None else highest_position(at) + 1
        if longest > n:
            raise InputError(
                f"The sequence reaches position {longest - 1}, but the model has a table of {n} positions."
            )
        return F.embedding(at, self.weight)


class NetworkPositions(Positions):
    """Vectors that a small network computes from the position, so that they are not bound to a length (Liu et al. 2020
    learn positions by a network too). It reads sinusoids of the position divided by `n`, the usual largest one."""

    WIDTH = 32  # of the sinusoids

    def __init__(self, d_model: int, n: int, axes: int = 1) -> None:
        super().__init__()
        self.n = n
        self.up = Linear(axes * self.WIDTH, d_model)
        self.down = Linear(d_model, d_model)

    def vectors(self, *places: Tensor) -> Tensor:
        """[.., T, d_model] from the coordinates of each token [.., T], one tensor per axis."""
        codes = [sinusoids(place * (1000.0 / self.n), self.WIDTH) for place in places]
        return self.down(F.gelu(self.up(torch.cat(codes, dim=-1).to(self.up.weight.dtype))))

    def forward(self, tokens: Tokens) -> Tensor:
        return self.vectors(positions_of(tokens))


class NetworkGrid(NetworkPositions):
    """Vectors that a small network computes from the row and the column of a cell, as fractions of the image, so that
    they fit images of any size."""

    extra = 0

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 1, axes=2)

    def forward(self, rows: int, columns: int) -> Tensor:  # type: ignore[override]
        cell = torch.arange(rows * columns, device=self.up.weight.device)
        return self.vectors((cell // columns + 0.5) / rows, (cell % columns + 0.5) / columns)


class LearnedGrid(Positions):
    """A learned vector for each cell of an image, and `extra` more for the tokens before it (the class token). `fixed`
    uses sinusoids instead, of a cell's index ("1d") or of its column and row ("2d").

    For an image of another size, the vectors are bicubically interpolated if the caller asks for it.
    """

    def __init__(
        self, rows: int, columns: int, d_model: int, extra: int = 0, fixed: Literal["1d", "2d"] | None = None
    ) -> None:
        super().__init__()
        if fixed == "2d":
            _check_width("Sinusoidal positions of rows and columns", d_model, 2)
        self.rows, self.columns, self.extra, self.fixed = rows, columns, extra, fixed
        self.weight = nn.Parameter(torch.empty(extra + rows * columns, d_model), requires_grad=fixed is None)

    def reset(self, std: float) -> None:
        if self.fixed is None:
            nn.init.trunc_normal_(self.weight, std=std)
            return
        width = self.weight.shape[1]
        if self.fixed == "2d":
            cells = sinusoids_2d(self.rows, self.columns, width)
        else:
            cells = sinusoids(torch.arange(self.rows * self.columns), width, "halves")
        self.weight.data.copy_(F.pad(cells, (0, 0, self.extra, 0)))

    def forward(self, rows: int, columns: int, flat: bool = False) -> Tensor:
        """The table [extra + rows·columns, d]. `flat` interpolates the cells as one line, as the published MAE decoder
        does."""
        if (rows, columns) == (self.rows, self.columns):
            return self.weight
        head, cells = self.weight[: self.extra], self.weight[self.extra :]
        have, want = ((1, len(cells)), (1, rows * columns)) if flat else ((self.rows, self.columns), (rows, columns))
        picture = cells.view(1, *have, -1).permute(0, 3, 1, 2)
        picture = F.interpolate(picture, size=want, mode="bicubic", align_corners=False)
        return torch.cat([head, picture.flatten(2)[0].T])


class LearnedRowColumn(Positions):
    """Learned vectors for columns and rows, concatenated (DETR's learned variant)."""

    def __init__(self, rows: int, columns: int, d_model: int) -> None:
        super().__init__()
        _check_width("Learned positions of rows and columns", d_model, 2)
        self.row = nn.Parameter(torch.empty(rows, d_model // 2))
        self.column = nn.Parameter(torch.empty(columns, d_model // 2))

    def reset(self, std: float) -> None:
        nn.init.uniform_(self.row)
        nn.init.uniform_(self.column)

    def forward(self, tokens: Tokens) -> Tensor:
        assert tokens.grid is not None
        rows, columns = tokens.grid
        if rows > len(self.row) or columns > len(self.column):
            raise InputError(
                f"The image has {rows} x {columns} cells, but the model has tables of {len(self.row)} rows and"
                f" {len(self.column)} columns."
            )
        x = self.column[None, :columns].expand(rows, -1, -1)
        y = self.row[:rows, None].expand(-1, columns, -1)
        return torch.cat([x, y], dim=-1).flatten(0, 1).unsqueeze(0)


class InterpolatedRowColumn(LearnedRowColumn):
    """As `LearnedRowColumn`, for images of one size and without a vector for the class token. For another size, each
    axis is linearly interpolated (the ViT paper's learned 2D positions, appendix D.4)."""

    extra = 0

    def reset(self, std: float) -> None:
        nn.init.trunc_normal_(self.row, std=std)
        nn.init.trunc_normal_(self.column, std=std)

    def forward(self, rows: int, columns: int) -> Tensor:  # type: ignore[override]
        x = interpolate_1d(self.column, columns).expand(rows, -1, -1)
        y = interpolate_1d(self.row, rows).unsqueeze(1).expand(-1, columns, -1)
        return torch.cat([x, y], dim=-1).flatten(0, 1)


def interpolate_1d(line: Tensor, n: int) -> Tensor:
    """[m, d] -> [n, d], by linear interpolation."""
    if len(line) == n:
        return line
    return F.interpolate(line.T.unsqueeze(0), size=n, mode="linear", align_corners=False)[0].T


class Sinusoidal2D(Positions):
    """DETR's sinusoids of the position within the real part of the image, scaled to 0…2π (Carion 2020, A.4)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        _check_width("Sinusoidal positions of rows and columns", d_model, 4)
        self.d_model = d_model

    def forward(self, tokens: Tokens) -> Tensor:
        assert tokens.grid is not None
        # Half precision cannot distinguish cells of large images.
        dtype = torch.promote_types(tokens.x.dtype, torch.float32)
        mask = tokens.mask if tokens.mask is not None else tokens.x.new_ones(1, tokens.x.shape[1], dtype=torch.bool)
        real = mask.view(-1, *tokens.grid).to(dtype)
        codes = []
        for axis in (1, 2):
            place = real.cumsum(axis)
            place = place / (place.narrow(axis, -1, 1) + 1e-6) * 2 * math.pi
            codes.append(sinusoids(place, self.d_model // 2, dtype=dtype))
        return torch.cat(codes, dim=-1).flatten(1, 2).to(tokens.x.dtype)  # [B, rows·columns, d]


class Rotary(Positions):
    """Rotary embedding: rotates queries and keys by an angle proportional to the position, so that scores depend only
    on distances (Su 2021).

    `rope` sets the frequencies, `original_max_length` is the length in training. "dynamic" and "longrope" depend on
    the longest text of a pass: only there, a row depends on the other rows of the batch, and a cached key keeps the
    rotation of the length at which it was computed.
    """

    rotates_values = False

    def __init__(
        self,
        d_head: int,
        base: float = 10_000.0,
        layout: SinusoidLayout = "halves",
        rope: RopeConfig | None = None,
        trained: int = 2048,
    ) -> None:
        super().__init__()
        self.d_head, self.layout, self.trained = d_head, layout, trained
        self.rope = rope if rope is not None else RopeConfig(theta=base)
        n_factors, pairs = len(self.rope.short_factors), self.rope.width(d_head) // 2
        if n_factors not in (0, pairs):
            raise ConfigError(f"short_factors has {n_factors} entries; a head has {pairs} pairs of rotated features.")
        if self.rope.width(d_head) == d_head:
            _check_width("Rotary positions of a head", d_head, 2)

    def prepare(self, tokens: Tokens) -> Encoding:
        return Rotation(self, positions_of(tokens).unsqueeze(0) if tokens.packed else positions_of(tokens))

    @property
    def shared_key(self) -> Any:
        return type(self), self.rope, self.d_head, self.layout, self.trained

    def tables(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, T, width] of the positions `at` [B, T].

        Published models were trained with single precision; half precision does not distinguish large positions.
        """
        precision = torch.float64 if dtype == torch.float64 else torch.float32
        highest = highest_position(at) if self.rope.by_length else 0
        rates = self.rope.rates(self.d_head, self.trained, highest, precision, at.device)
        angles = (at.to(precision).unsqueeze(-1) * rates).unsqueeze(1)
        gain = self.rope.amplitude(self.trained)
        return self._both((angles.cos() * gain).to(dtype), (angles.sin() * gain).to(dtype))

    def _both(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Expand the tables: a pair (a, b) becomes (a cos - b sin, b cos + a sin), each feature times cos, and its
        partner times ±sin."""
        if self.layout == "halves":
            return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return torch.stack([cos, cos], dim=-1).flatten(-2), torch.stack([-sin, sin], dim=-1).flatten(-2)

    def rotate(self, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys [B, H, T, d] by the positions [B or 1, T]."""
        tables = self.tables(positions, query.dtype)
        return self.turn(query, *tables), self.turn(key, *tables)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [B, H, T, d]."""
        width = cos.shape[-1]
        turned, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
        if self.layout == "halves":
            partner = turned.roll(width // 2, dims=-1)
        else:
            partner = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        turned = torch.addcmul(turned * cos, partner, sin)
        return turned if rest is None else torch.cat([turned, rest], dim=-1)


class Rotation(Encoding):
    """The rotation of one pass. Its tables are computed once for all layers, in the dtype of the first queries."""

    def __init__(self, rotary: Rotary, at: Tensor) -> None:
        self.rotary, self.at = rotary, at
        self._tables: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def rotate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.dtype not in self._tables:
            self._tables[query.dtype] = self.rotary.tables(self.at, query.dtype)
        tables, rotary = self._tables[query.dtype], self.rotary
        value = rotary.turn(value, *tables) if rotary.rotates_values else value
        return rotary.turn(query, *tables), rotary.turn(key, *tables), value


class RotaryWithValues(Rotary):
    """Rotary embedding that also rotates values, so that their mean depends on their positions (RoFormer's option)."""

    rotates_values = True


class Rotary2D(Positions):
    """Rotary embedding of the cells of an image: half of each head's features turn by the row, half by the column
    (Heo et al. 2024, axial). Tokens before the cells, such as a class token, are not rotated."""

    has_bias = True  # as those with a bias, they cannot be computed for packed rows

    def __init__(self, d_head: int, rope: RopeConfig | None = None) -> None:
        super().__init__()
        _check_width("Rotary positions of rows and columns", d_head, 4)
        self.axis = Rotary(d_head // 2, rope=rope)
        self.d_head = d_head

    @property
    def shared_key(self) -> Any:
        return type(self), self.axis.shared_key

    def prepare(self, tokens: Tokens) -> Encoding:
        if tokens.grid is None:
            raise InputError("rotary-2d positions need tokens of an image, which have rows and columns.")
        columns = tokens.grid[1]
        cell = torch.arange(tokens.x.shape[-2], device=tokens.x.device) - self.extra(tokens)
        real = (cell >= 0).unsqueeze(0)
        cell = cell.clamp(min=0).unsqueeze(0)
        return GridRotation(self.axis, cell // columns * real, cell % columns * real)

    @staticmethod
    def extra(tokens: Tokens) -> int:
        """The number of tokens before the cells."""
        assert tokens.grid is not None
        return tokens.x.shape[-2] - tokens.grid[0] * tokens.grid[1]


class GridRotation(Encoding):
    """The rotation of one pass by the rows and columns [1, T] of tokens."""

    def __init__(self, axis: Rotary, rows: Tensor, columns: Tensor) -> None:
        self.turns = (Rotation(axis, rows), Rotation(axis, columns))

    def rotate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        halves = [
            turn.rotate(q, k, value)[:2]
            for turn, q, k in zip(self.turns, query.chunk(2, dim=-1), key.chunk(2, dim=-1), strict=True)
        ]
        return torch.cat([q for q, _ in halves], dim=-1), torch.cat([k for _, k in halves], dim=-1), value


class RelativeBuckets(BiasedPositions):
    """A learned bias per head for each bucket of distances, exact for short distances, logarithmic for long ones
    (Raffel 2020)."""

    def __init__(self, n_heads: int, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=std)

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each distance, which is key - query."""
        n = self.weight.shape[0]
        start = torch.zeros_like(distance)
        if self.bidirectional:
            n //= 2
            start = torch.where(distance > 0, n, 0)
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = n // 2
        far = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact) * (n - exact)
        return start + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=n - 1))

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        return self.weight[self.bucket(_distances(query, key, offset))].permute(2, 0, 1).unsqueeze(0)


class RelativeGrid(BiasedPositions):
    """A learned bias per head for each difference of the rows and columns of two cells, and three more between the
    class token and the rest (Bao et al. 2022).

    For an image of another size, the table is bilinearly interpolated.
    """

    def __init__(self, rows: int, columns: int, n_heads: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        self.weight = nn.Parameter(torch.empty((2 * rows - 1) * (2 * columns - 1) + 3, n_heads))

    def reset(self, std: float) -> None:
        nn.init.zeros_(self.weight)

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        rows, columns = grid[:2] if grid is not None else (self.rows, self.columns)
        numbers = self.table(rows, columns)[relative_position_index(rows, columns, query.device)]  # [Q, K, H]
        return numbers.permute(2, 0, 1).unsqueeze(0)

    def table(self, rows: int, columns: int) -> Tensor:
        have, want = (2 * self.columns - 1, 2 * self.rows - 1), (2 * rows - 1, 2 * columns - 1)
        if have == want:
            return self.weight
        # Published code uses the width first here, which matters if an image is not square.
        cells = self.weight[:-3].view(1, *have, -1).permute(0, 3, 1, 2)
        cells = F.interpolate(cells, size=want, mode="bilinear", align_corners=False)
        return torch.cat([cells.flatten(2)[0].T, self.weight[-3:]])


@cache
def relative_position_index(rows: int, columns: int, device: torch.device) -> Tensor:
    """For each query and key [1 + cells, 1 + cells], their row in a table of (2 rows - 1)·(2 columns - 1) + 3 rows."""
    with torch.inference_mode(False):  # it is cached, and autograd may use it later
        cell = torch.arange(rows * columns, device=device)
        y, x = cell // columns, cell % columns
        down, right = y[:, None] - y + rows - 1, x[:, None] - x + columns - 1  # query - key, from 0
        n = (2 * rows - 1) * (2 * columns - 1)
        index = F.pad(down * (2 * columns - 1) + right, (1, 0, 1, 0))
        index[0, :], index[:, 0] = n, n + 1
        index[0, 0] = n + 2
        return index


class RelativeXL(BiasedPositions):
    """Transformer-XL's relative positions (Dai et al. 2019, §3.3), with separate biases for content and position.

    score = ((q + u)·k + (q + v)·W r) · scale, where r is the sinusoid of the distance; all terms except q·k are the
    bias.
    """

    def __init__(self, n_heads: int, d_head: int, d_model: int) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.empty(n_heads, 1, d_head))  # u
        self.place = nn.Parameter(torch.empty(n_heads, 1, d_head))  # v
        self.weight = nn.Parameter(torch.empty(n_heads * d_head, d_model))  # W
        self.d_model = d_model

    def reset(self, std: float) -> None:
        for parameter in (self.content, self.place, self.weight):
            nn.init.normal_(parameter, std=std)

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        n_heads, n_query, n_key = query.shape[1], query.shape[2], key.shape[2]
        if not n_query:
            return query.new_zeros(1, 1, 0, n_key)
        far = torch.arange(offset + n_query - 1, offset - n_key, -1, device=query.device)  # every query - key
        codes = sinusoids(far, self.d_model, "halves").to(query.dtype) @ self.weight.T
        codes = codes.view(len(far), n_heads, -1).transpose(0, 1)  # [H, distances, d_head]
        by_distance = (query + self.place) @ codes.transpose(-1, -2)  # [B, H, Q, distances]
        # Row i needs distances offset + i - j, a slice that begins one earlier than that of the row above: in a view
        # whose rows are one element shorter, the slices are aligned.
        flat = by_distance.flatten(-2)[..., n_query - 1 : n_query - 1 + n_query * (len(far) - 1)]
        by_place = flat.unflatten(-1, (n_query, len(far) - 1))[..., :n_key] if n_query > 1 else by_distance
        keys = key if key.shape[1] == n_heads else key.repeat_interleave(n_heads // key.shape[1], dim=1)
        return (by_place + self.content @ keys.transpose(-1, -2)) * scale


class ALiBi(BiasedPositions):
    """A penalty proportional to the distance, with a different slope for each head (Press et al. 2022)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        power = 2 ** math.floor(math.log2(n_heads))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]
        self.slopes = slopes

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        slopes = torch.tensor(self.slopes, device=query.device, dtype=query.dtype).view(1, -1, 1, 1)
        return -slopes * _distances(query, key, offset).abs().to(query.dtype)


def positions_of(tokens: Tokens) -> Tensor:
    """The indices of the tokens, [B or 1, T]; of packed tokens [N], within their rows."""
    if tokens.positions is not None:
        return tokens.positions
    if tokens.packing is not None:
        return tokens.packing.places
    return torch.arange(tokens.x.shape[-2], device=tokens.x.device).unsqueeze(0)


def highest_position(at: Tensor) -> int:
    return int(at.max()) if at.numel() and not is_capturing(at) else -1


def _distances(query: Tensor, key: Tensor, offset: int) -> Tensor:
    """Distances key - query [Q, K]."""
    q = torch.arange(offset, offset + query.shape[2], device=query.device)
    return torch.arange(key.shape[2], device=query.device)[None, :] - q[:, None]
