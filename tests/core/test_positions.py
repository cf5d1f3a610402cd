"""Each position encoding against the code or the formula that it was published with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.models.beit.configuration_beit import BeitConfig
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.detr.modeling_detr import DetrLearnedPositionEmbedding, DetrSinePositionEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.vit.configuration_vit import ViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from anyformer.core.attend import attend, attention_weights
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.init import InitConfig, initialize
from anyformer.core.positions import (
    ALiBi,
    Encoding,
    LearnedGrid,
    LearnedPositions,
    LearnedRowColumn,
    Positions,
    RelativeBuckets,
    RelativeGrid,
    RelativeXL,
    Rotary,
    Sinusoidal,
    Sinusoidal2D,
    SinusoidLayout,
    sinusoids,
    sinusoids_2d,
)
from anyformer.core.rope import RopeConfig
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _drawn(positions: Positions, std: float = 1.0) -> Positions:
    torch.manual_seed(0)
    initialize(positions, InitConfig(std=std))
    return positions.double()


def _rotated(rotary: Rotary, query: Tensor, key: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [B, H, T, d] turned as those of tokens at the positions `at` [B, T]; values stay."""
    tokens = Tokens(query[:, 0], positions=at)
    turned_query, turned_key, value = rotary.prepare(tokens).rotate(query, key, key)
    assert value is key
    return turned_query, turned_key


@pytest.mark.parametrize("d_model", [8, 7])
def test_sinusoids_follow_the_paper(d_model: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…), i from 0, so the first pair turns by 1 a step."""
    at = torch.tensor([0, 1, 2, 17, 500])
    mixed, halves = sinusoids(at, d_model), sinusoids(at, d_model, "halves")
    for row, position in enumerate(at.tolist()):
        for feature in range(d_model):
            angle = position / 10_000 ** (2 * (feature // 2) / d_model)
            expected = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            assert math.isclose(float(mixed[row, feature]), expected, abs_tol=1e-12)
    sines = mixed[:, 0::2]
    assert torch.equal(halves, torch.cat([sines, mixed[:, 1::2]], dim=1))
    assert math.isclose(float(mixed[1, 0]), math.sin(1.0))


def test_sinusoidal_has_no_end_and_follows_positions() -> None:
    """Computed where it is needed: any length, and a token's vector is that of its position, not of its slot."""
    encoding = Sinusoidal(6)
    tokens = Tokens(_normal(2, 3, 6), positions=torch.tensor([[0, 1, 2], [5000, 7, 7]]))
    got = encoding(tokens)
    assert torch.equal(got[1, 1], got[1, 2])
    assert torch.equal(got[1, :1], sinusoids(torch.tensor([5000]), 6))
    assert torch.equal(encoding(Tokens(_normal(1, 3, 6)))[0], sinusoids(torch.arange(3), 6))


def test_table_is_indexed_by_position() -> None:
    """A learned table is looked up by where a token stands, packed or padded; past its end is an error."""
    table = _drawn(LearnedPositions(5, 4))
    assert torch.equal(table(Tokens(_normal(2, 5, 4)))[0], table.weight)
    padded = Tokens(_normal(2, 3, 4), torch.tensor([[0, 1, 1], [1, 1, 1]]).bool(), torch.tensor([[0, 0, 1], [2, 3, 4]]))
    assert torch.equal(table(padded)[1], table.weight[2:5])
    packed = table(padded.pack())
    assert torch.equal(packed, table.weight[[0, 1, 2, 3, 4]])
    with pytest.raises(InputError, match=r"position 5.*table of 5"):
        table(Tokens(_normal(1, 6, 4)))
    with pytest.raises(InputError, match="position 5"):
        table(Tokens(_normal(1, 2, 4), positions=torch.tensor([[0, 5]])))


def test_a_fixed_table_is_not_trained() -> None:
    """A table that a formula filled holds the sinusoids and takes no gradient."""
    table = LearnedPositions(9, 6, fixed="halves")
    initialize(table, InitConfig())
    assert not table.weight.requires_grad
    assert torch.allclose(table.weight, sinusoids(torch.arange(9), 6, "halves").float())


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000)])
def test_t5_buckets(both_ways: bool, n_buckets: int, max_distance: int) -> None:
    """Distances fall into the buckets of the published T5."""
    distance = torch.arange(-300, 301)
    ours = RelativeBuckets(2, n_buckets, max_distance, both_ways).bucket(distance)
    theirs = T5Attention._relative_position_bucket(distance, both_ways, n_buckets, max_distance)
    assert torch.equal(ours, theirs)


def test_t5_bias_picks_a_number_a_head() -> None:
    """bias[h, i, j] is the table's entry for the bucket of j - i, with the cache's offset counted."""
    encoding = _drawn(RelativeBuckets(2, 8, 20))
    query, key = _normal(1, 2, 3, 4), _normal(1, 2, 9, 4)
    bias = encoding(query, key, 5, 1.0)
    for i in range(3):
        for j in range(9):
            bucket = T5Attention._relative_position_bucket(torch.tensor(j - (i + 5)), True, 8, 20)
            assert torch.equal(bias[0, :, i, j], encoding.weight[bucket])


@pytest.mark.parametrize("size", [(3, 3), (3, 5), (4, 2)], ids=str)
@pytest.mark.parametrize("made_for", [(3, 3), (3, 5)], ids=str)
def test_grid_bias_is_beits(made_for: tuple[int, int], size: tuple[int, int]) -> None:
    """Rows and columns apart, the class token aside, in images of the size that it was made for and of others."""
    encoding = RelativeGrid(*made_for, 2).double()
    encoding.weight.data.copy_(_normal(*encoding.weight.shape))
    theirs = BeitRelativePositionBias(
        BeitConfig(image_size=[8 * n for n in made_for], patch_size=8, hidden_size=8, num_attention_heads=2)
    ).double()
    theirs.relative_position_bias_table.data.copy_(encoding.weight.data)
    cells = _normal(1, 2, 1 + size[0] * size[1], 4)
    torch.testing.assert_close(encoding(cells, cells, 0, 1.0, size), theirs(size), atol=1e-12, rtol=0)


def test_grid_bias_sees_only_differences() -> None:
    """Two pairs of cells that lie alike have the same number; fresh ones are zero."""
    encoding = RelativeGrid(3, 4, 1)
    encoding.reset(1.0)
    assert not bool(encoding.weight.any())
    encoding.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    cells = torch.zeros(1, 1, 13, 2)
    bias = encoding(cells, cells, 0, 1.0)[0, 0, 1:, 1:].view(3, 4, 3, 4)
    assert bias[0, 0, 1, 2] == bias[1, 1, 2, 3]
    assert bias[0, 0, 1, 2] != bias[1, 2, 0, 0]


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("groups", [2, 1])
def test_xl_bias_is_the_papers_four_terms(groups: int, offset: int) -> None:
    """q·k, q·W r, u·k and v·W r of Transformer-XL §3.3, summed by a double loop, are the scores with the bias."""
    n_heads, d_head, d_model, n_query, n_key = 2, 4, 6, 5, 8
    encoding = _drawn(RelativeXL(n_heads, d_head, d_model))
    query, key = _normal(2, n_heads, n_query, d_head), _normal(2, groups, n_key, d_head, seed=1)
    scale = d_head**-0.5
    bias = encoding(query, key, offset, scale)
    codes = encoding.weight.view(n_heads, d_head, d_model)
    for b in range(2):
        for h in range(n_heads):
            u, v = encoding.content[h, 0], encoding.place[h, 0]
            for i in range(n_query):
                for j in range(n_key):
                    q, k = query[b, h, i], key[b, h * groups // n_heads, j]
                    far = offset + i - j  # how far the key lies in the past
                    angles = [far / 10_000 ** (2 * n / d_model) for n in range(d_model // 2)]
                    r = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                    w = codes[h] @ r
                    score = (q @ k + q @ w + u @ k + v @ w) * scale
                    assert torch.isclose(q @ k * scale + bias[b, h, i, j], score, atol=1e-12)


@pytest.mark.parametrize("n_heads", [1, 2, 6, 8, 12, 20])
def test_alibi_slopes_are_blooms(n_heads: int) -> None:
    """The slopes are those of the published code, for a number of heads that is no power of two as well."""
    theirs = build_alibi_tensor(torch.ones(1, 5, dtype=torch.long), n_heads, torch.float32)[:, 0, 1]
    assert torch.allclose(torch.tensor(ALiBi(n_heads).slopes), theirs, rtol=1e-6)


def test_alibi_gives_blooms_attention() -> None:
    """BLOOM adds slope·j instead of -slope·(i-j): the same after a causal softmax, in every head."""
    n_heads, length = 6, 7
    query, key = _normal(1, n_heads, length, 4), _normal(1, n_heads, length, 4, seed=1)
    bias = ALiBi(n_heads)(query, key, 0, 0.5)
    theirs = build_alibi_tensor(torch.ones(1, length, dtype=torch.long), n_heads, torch.float64).unsqueeze(0)
    future = torch.ones(length, length).triu(1).bool()
    ours, expected = (
        (query @ key.transpose(-1, -2) * 0.5 + term).masked_fill(future, -torch.inf).softmax(-1)
        for term in (bias, theirs)
    )
    assert torch.allclose(ours, expected, atol=1e-7)  # their slopes are float32


def test_alibi_counts_from_the_offset() -> None:
    """With a cache, the first query stands at key `offset`; the distance to itself is 0."""
    query, key = _normal(1, 2, 2, 4), _normal(1, 2, 6, 4)
    bias = ALiBi(2)(query, key, 4, 1.0)
    steps = torch.tensor([[4, 3, 2, 1, 0, 1], [5, 4, 3, 2, 1, 0]])
    for head, slope in enumerate((2.0**-4, 2.0**-8)):
        assert torch.equal(bias[0, head], -slope * steps.double())


def test_rotary_halves_are_llamas() -> None:
    """The "halves" layout is the published code of Llama, for positions of each row's own."""
    d_head = 8
    query, key = _normal(2, 3, 5, d_head), _normal(2, 1, 5, d_head, seed=1)
    at = torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 1, 2]])
    rates = 10_000 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = (at.unsqueeze(-1) * rates).repeat(1, 1, 2)
    theirs = apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    for ours, expected in zip(_rotated(Rotary(d_head), query, key, at), theirs, strict=True):
        assert torch.allclose(ours, expected, atol=1e-12)


def test_rotary_interleaved_multiplies_complex_numbers() -> None:
    """The paper's layout: each pair of features is a complex number times e^(i·position·rate)."""
    query, key = _normal(1, 2, 4, 6), _normal(1, 2, 4, 6, seed=1)
    at = torch.tensor([[0, 3, 4, 9]])
    rates = 500.0 ** (-torch.arange(3, dtype=torch.float64) * 2 / 6)
    turn = torch.polar(torch.ones(4, 3, dtype=torch.float64), at[0, :, None] * rates)
    rotated = _rotated(Rotary(6, base=500.0, layout="interleaved"), query, key, at)
    for x, ours in zip((query, key), rotated, strict=True):
        expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (3, 2))) * turn).flatten(-2)
        assert torch.allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_scores_see_only_distances(layout: str) -> None:
    """Moving all tokens by the same distance changes no score; moving one of them does."""
    query, key = _normal(1, 2, 5, 8), _normal(1, 2, 5, 8, seed=1)
    rotary = Rotary(8, layout=layout)  # type: ignore[arg-type]

    def scores(at: Tensor) -> Tensor:
        q, k = _rotated(rotary, query, key, at)
        return q @ k.transpose(-1, -2)

    at = torch.tensor([[0, 1, 5, 6, 7]])
    assert torch.allclose(scores(at), scores(at + 1000), atol=1e-10)
    assert not torch.allclose(scores(at), scores(torch.tensor([[0, 1, 5, 6, 8]])), atol=1e-3)


@pytest.mark.parametrize("masked", [True, False])
def test_sinusoidal_2d_is_detrs(masked: bool) -> None:
    """DETR's encoding, which counts within the real part of each image."""
    rows, columns, d_model = 4, 5, 8
    mask = torch.zeros(2, rows, columns, dtype=torch.bool)
    mask[0] = True
    mask[1, :3, :2] = True
    theirs = DetrSinePositionEmbedding(d_model // 2, normalize=True)
    shape = torch.Size((2, 1, rows, columns))
    expected = theirs(shape, "cpu", torch.float64, mask=mask if masked else None)
    expected = expected.flatten(2).transpose(1, 2) if expected.dim() == 4 else expected
    tokens = Tokens(_normal(2, rows * columns, d_model), mask.flatten(1) if masked else None, grid=(rows, columns))
    ours = Sinusoidal2D(d_model)(tokens)
    assert torch.allclose(ours.expand(2, -1, -1), expected, atol=1e-12)


def test_grid_2d_is_detrs_learned_encoding() -> None:
    """A vector for the column beside one for the row, cell by cell; a larger image is an error."""
    theirs = DetrLearnedPositionEmbedding(3).double()
    ours = LearnedRowColumn(50, 50, 6).double()
    ours.load_state_dict({"row": theirs.row_embeddings.weight, "column": theirs.column_embeddings.weight})
    expected = theirs(torch.Size((1, 6, 3, 4)), "cpu", torch.float64)
    expected = expected.flatten(2).transpose(1, 2) if expected.dim() == 4 else expected
    tokens = Tokens(_normal(1, 12, 6), grid=(3, 4))
    assert torch.equal(ours(tokens), expected)
    with pytest.raises(InputError, match="51 x 1 cells"):
        ours(Tokens(_normal(1, 51, 6), grid=(51, 1)))


def test_sinusoids_2d_are_maes() -> None:
    """MAE's fixed table, whose published layout tells the column first."""
    theirs = build_2d_sinusoidal_position_embedding(3, 4, 16, dtype=torch.float64)
    expected = torch.cat([theirs[:, 8:], theirs[:, :8]], dim=1)  # as its initialize_weights swaps them
    assert torch.allclose(sinusoids_2d(3, 4, 16), expected, atol=1e-12)
    grid = LearnedGrid(3, 4, 16, extra=1, fixed="2d")
    initialize(grid, InitConfig())
    assert torch.allclose(grid.weight[1:], expected.float())
    assert (grid.weight[0] == 0).all()
    assert not grid.weight.requires_grad


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (6, 6), (3, 5), (2, 8)])
def test_grid_interpolates_as_vit(rows: int, columns: int) -> None:
    """An image of another size takes its vectors as the published ViT does, also one with as many cells."""
    theirs = ViTEmbeddings(ViTConfig(hidden_size=6, image_size=32, patch_size=8)).double()
    grid = LearnedGrid(4, 4, 6, extra=1).double()
    grid.weight.data.copy_(theirs.position_embeddings[0])
    expected = theirs.interpolate_pos_encoding(_normal(1, 1 + rows * columns, 6), rows * 8, columns * 8)
    assert torch.allclose(grid(rows, columns), expected[0], atol=1e-12)


def _attention() -> Attention:
    torch.manual_seed(1)
    attention = Attention(AttentionConfig(d_query=8, n_heads=2))
    initialize(attention, InitConfig(std=1.0))
    return attention.double().eval()


RELATIVE = {
    "rotary": Rotary(4),
    "t5": RelativeBuckets(2, 8, 20),
    "xl": RelativeXL(2, 4, 8),
    "alibi": ALiBi(2),
}


def test_attention_without_positions_knows_no_order() -> None:
    """Permuting the tokens permutes the outputs and nothing else: no positions, no order."""
    attention = _attention()
    x, order = _normal(2, 6, 8), torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.allclose(attention(Tokens(x[:, order])), attention(Tokens(x))[:, order], atol=1e-12)


@pytest.mark.parametrize("name", RELATIVE)
def test_attention_with_positions_knows_the_order(name: str) -> None:
    """Every encoding that attention applies itself breaks that symmetry."""
    attention, positions = _attention(), _drawn(RELATIVE[name])
    x, order = _normal(2, 6, 8), torch.tensor([3, 1, 5, 0, 4, 2])

    def run(x: Tensor) -> Tensor:
        tokens = Tokens(x)
        return attention(tokens.with_encoding(positions.prepare(tokens)))

    assert (run(x[:, order]) - run(x)[:, order]).abs().max() > 1e-3


@pytest.mark.parametrize("encoding", [Sinusoidal(8), _drawn(LearnedPositions(6, 8))], ids=["sinusoidal", "table"])
def test_added_positions_break_the_symmetry(encoding: Positions) -> None:
    """Vectors added at the bottom do so too."""
    attention = _attention()
    x, order = _normal(2, 6, 8), torch.tensor([3, 1, 5, 0, 4, 2])

    def run(x: Tensor) -> Tensor:
        added = encoding(Tokens(x))
        assert added is not None
        return attention(Tokens(x + added))

    assert (run(x[:, order]) - run(x)[:, order]).abs().max() > 1e-3


def test_the_encoding_none_changes_nothing() -> None:
    """`Positions()` itself is the encoding "none"."""
    query, key = _normal(1, 2, 3, 4), _normal(1, 2, 3, 4, seed=1)
    none, at = Positions(), torch.arange(3).unsqueeze(0)
    assert none.prepare(Tokens(query[0], positions=at)) is None and not none.has_bias
    assert Encoding().rotate(query, key, key) == (query, key, key)
    assert Encoding().bias(query, key, 0, 1.0) is None
    assert none(Tokens(query[0])) is None


@pytest.mark.parametrize("name", ["t5", "xl", "alibi"])
def test_biases_reach_the_scores(name: str) -> None:
    """Attention adds the bias to the scaled scores before the softmax, in `attend` and in `attention_weights` alike."""
    encoding = _drawn(RELATIVE[name])
    query, key, value = _normal(1, 2, 5, 4), _normal(1, 2, 5, 4, seed=1), _normal(1, 2, 5, 4, seed=2)
    bias = encoding(query, key, 0, 0.5)
    assert bias is not None
    expected = (query @ key.transpose(-1, -2) * 0.5 + bias).softmax(-1)
    assert torch.allclose(attention_weights(query, key, bias=bias, scale=0.5), expected, atol=1e-12)
    assert torch.allclose(attend(query, key, value, bias=bias, scale=0.5), expected @ value, atol=1e-12)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_partial_rotary_turns_the_first_features_alone(layout: SinusoidLayout) -> None:
    """A quarter of each head turns as a head of that width would; the rest passes."""
    query, key = torch.randn(2, 3, 5, 16).double(), torch.randn(2, 3, 5, 16).double()
    at = torch.arange(5)[None]
    small = _rotated(Rotary(4, layout=layout), query[..., :4], key[..., :4], at)
    found = _rotated(Rotary(16, layout=layout, rope=RopeConfig(partial_rotary_factor=0.25)), query, key, at)
    for x, part, whole in zip((query, key), small, found, strict=True):
        assert torch.equal(whole[..., :4], part)
        assert torch.equal(whole[..., 4:], x[..., 4:])


def test_stretched_rotations_do_what_they_say() -> None:
    """Linear divides all rates; blend and yarn keep the fastest and divide the slowest; dynamic is plain when short."""

    def rates(kind: str, highest: int = 0, factor: float = 4.0) -> Tensor:
        rope = RopeConfig(rope_type=kind, factor=factor, original_max_length=1024)  # type: ignore[arg-type]
        return rope.rates(64, 1024, highest, torch.float64, torch.device("cpu"))

    plain = rates("default")
    assert torch.allclose(rates("linear"), plain / 4)
    for kind in ("llama3", "yarn"):
        found = rates(kind)
        assert torch.allclose(found[:4], plain[:4])
        assert torch.allclose(found[-4:], plain[-4:] / 4)
        assert (found <= plain).all() and (found >= plain / 4).all()
    assert torch.equal(rates("dynamic", highest=1023), plain)
    assert (rates("dynamic", highest=4095)[1:] < plain[1:]).all()
    assert RopeConfig(rope_type="yarn", factor=4.0).amplitude(512) == pytest.approx(1 + 0.1 * math.log(4))
