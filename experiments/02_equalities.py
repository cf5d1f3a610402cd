"""Three pairs of things that are the same sum: a look-up and a product with a one-hot vector, a patch embedding and a
strided convolution, attention whose weights are set by hand and a 3×3 convolution.

    python experiments/02_equalities.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.init import InitConfig, initialize
from anyformer.core.positions import RelativeGrid
from anyformer.core.taps import Watch, name_taps, watching
from anyformer.core.tokens import Tokens
from anyformer.inputs.patches import patchify
from anyformer.inputs.text import Embedding
from frame import Claim, Found, Options, Picture, Table, main, plot

CLAIM = Claim(
    number=2,
    name="equalities",
    title="Three pairs that are the same sum",
    items=("000-2.1-10", "001-3-07", "001-5-01", "001-9-03"),
    says="""Looking a word up in a table is multiplying a one-hot vector by that table. Cutting an image into patches
and projecting each is a convolution whose stride is the size of its kernel. Self-attention can do whatever a
convolution does: a head for each tap of the kernel, each looking at one fixed neighbor.""",
    did="""Both sides of each pair were computed with random weights, in double and in single precision, and the largest
difference of any number is given. On the left stand anyformer's own parts (the word table; ViT's patch projection; an
attention of nine heads with relative positions on a grid), on the right plain products and PyTorch's `conv2d`. For the
attention queries and keys are zero; the table of relative positions of head (i, j) is 0 at its one neighbor and so
far below elsewhere that nothing is left after the softmax. Past the border a head looks at the token in front of the
image, whose vector is zero: that is the zero padding of the convolution. Values pass unchanged, and the output
projection is the kernel.""",
    seeds=(1,),
)

ROWS, COLUMNS, D_IN, D_OUT = 7, 7, 5, 4
TAPS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
CLASS, NEVER = -1e3, -1e6  # exp of either is exactly 0 beside a score of 0; and the second beside the first


def look_up(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    table = Embedding(1000, 64).to(dtype)
    table.reset(1.0)
    ids = torch.randint(0, 1000, (8, 20))
    return table(ids), F.one_hot(ids, 1000).to(dtype) @ table.weight


def gradient(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Learning agrees too: only the rows that were looked up move, each as often as it was."""
    table = Embedding(1000, 64).to(dtype)
    table.reset(1.0)
    ids, sent = torch.randint(0, 1000, (8, 20)), torch.randn(8, 20, 64, dtype=dtype)
    (found,) = torch.autograd.grad(table(ids), table.weight, sent)
    return found, F.one_hot(ids, 1000).to(dtype).flatten(0, 1).T @ sent.flatten(0, 1)


def patches(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    inputs = af.build("vit-tiny", image_size=(32, 32)).stages["encoder"].inputs.to(dtype)
    height, width = inputs.config.patch_size
    pixels = torch.randn(2, inputs.config.n_channels, 32, 32, dtype=dtype)
    kernel = inputs.patches.weight.view(-1, inputs.config.n_channels, height, width)
    convolved = F.conv2d(pixels, kernel, inputs.patches.bias, stride=(height, width))
    return inputs.patches(patchify(pixels, (height, width))), convolved.flatten(2).transpose(1, 2)


def set_by_hand(kernel: Tensor, bias: Tensor) -> tuple[Attention, RelativeGrid]:
    """Attention of nine heads with relative positions that does what a 3×3 convolution does with this kernel
    [D_OUT, D_IN, 3, 3]."""
    config = AttentionConfig(d_query=D_IN, n_heads=9, d_qk=9, d_value=9 * D_IN, d_out=D_OUT, bias=False)
    part, positions = Attention(config).to(kernel.dtype), RelativeGrid(ROWS, COLUMNS, 9).to(kernel.dtype)
    initialize(part, InitConfig())
    with torch.no_grad():
        part.qkv.weight.zero_()
        part.qkv.weight[18:].copy_(torch.eye(D_IN, dtype=kernel.dtype).repeat(9, 1))  # every head's values: the input
        table = positions.weight.fill_(NEVER)  # [(2 rows - 1)·(2 columns - 1) + 3, heads]
        table[-2] = CLASS  # from a cell to the token in front
        for head, (down, right) in enumerate(TAPS):
            table[(ROWS - 1 - down) * (2 * COLUMNS - 1) + COLUMNS - 1 - right, head] = 0.0  # query minus key
            part.out.weight[:, head * D_IN : (head + 1) * D_IN] = kernel[:, :, down + 1, right + 1]
        part.out.bias.copy_(bias)
    return part, positions


def convolve(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    kernel, bias = torch.randn(D_OUT, D_IN, 3, 3, dtype=dtype), torch.randn(D_OUT, dtype=dtype)
    picture = torch.randn(2, D_IN, ROWS, COLUMNS, dtype=dtype)
    cells = F.pad(picture.flatten(2).transpose(1, 2), (0, 0, 1, 0))  # a token of zeros in front
    with torch.no_grad():
        part, positions = set_by_hand(kernel, bias)
        tokens = Tokens(cells, grid=(ROWS, COLUMNS))
        attended = part(tokens.with_encoding(positions.prepare(tokens)))[:, 1:]
    return attended, F.conv2d(picture, kernel, bias, padding=1).flatten(2).transpose(1, 2)


PAIRS = {
    "look-up = one-hot vector × table": look_up,
    "its gradient": gradient,
    "patch embedding = strided convolution": patches,
    "nine heads set by hand = 3×3 convolution": convolve,
}


def weights_by_hand(row: int, column: int) -> Tensor:
    """What each head looks at from one cell, as images [9, rows, columns]."""
    part, positions = set_by_hand(torch.randn(D_OUT, D_IN, 3, 3), torch.zeros(D_OUT))
    holder, watch = torch.nn.ModuleDict({"self": part}), Watch()
    name_taps(holder, watch)
    with torch.no_grad(), watching(watch, "self.weights") as seen:
        tokens = Tokens(torch.randn(1, 1 + ROWS * COLUMNS, D_IN), grid=(ROWS, COLUMNS))
        part(tokens.with_encoding(positions.prepare(tokens)))
    return seen["self.weights"][0, :, 1 + row * COLUMNS + column, 1:].unflatten(1, (ROWS, COLUMNS))


def draw() -> Picture:
    row, column = 3, 2
    with plot(9, width=0.95, height=1.35) as (figure, panels):
        for axes, seen, (down, right) in zip(panels, weights_by_hand(row, column), TAPS, strict=True):
            axes.imshow(seen, cmap="Blues", vmin=0, vmax=1)
            axes.plot(column, row, "x", color="#c1443c", markersize=5)
            axes.set(xticks=[], yticks=[], title=f"{down:+}, {right:+}".replace("+0", "0"))
            axes.title.set_fontsize(8)
    return Picture(figure, "What each of the nine heads looks at (dark) from the cell with the cross.")


def run(options: Options) -> Found:
    rows, exact = [], {}
    for name, pair in PAIRS.items():
        differences = []
        for dtype, limit in ((torch.float64, 1e-13), (torch.float32, 1e-4)):
            torch.manual_seed(options.seeds[0])
            left, right = (side.detach() for side in pair(dtype))
            differences.append((left - right).abs().max().item())
            exact[f"{name} in {dtype}"] = left.shape == right.shape and differences[-1] <= limit
        rows.append([name, " × ".join(map(str, left.shape)), left.abs().max().item(), *differences])
    columns = ["equality", "numbers compared", "largest of them", "largest difference, double", "single precision"]
    return Found(
        tables=[Table("Both sides of each pair", columns, rows)],
        pictures=[draw()],
        verdict="holds" if all(exact.values()) else "does not hold here",
        words="""The look-up is equal to the last bit, the others to the rounding of a sum whose terms come in another
order. The third equality says that attention *can* be a convolution once it knows relative positions and has a head a
tap; it does not say that training finds this.""",
        exact=exact,
    )


if __name__ == "__main__":
    main(CLAIM, run)
