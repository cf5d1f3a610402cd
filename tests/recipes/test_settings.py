"""positions=, mask=, score=, norm=, norm_order= and activation= of every family: right, or refused in one sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.recipes.base import TransformerConfig
from anyformer.registry import recipe
from tests.checkpoints.compare import flat
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

FAMILIES = [name for name in tiny_recipes() if isinstance(recipe(name).config, TransformerConfig)]
DECODERS = ("gpt2-tiny", "llama-tiny", "gptneox-tiny")


def built(name: str, **settings: Any) -> af.Model:
    torch.manual_seed(0)
    return af.build(name, **settings).double().eval()


def batch_of(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    batch = training_batch(name)
    return {
        key: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in batch.items()
    }


def weights(model: af.Model, layer: int = 0, side: str = "*", **batch: Tensor) -> Tensor:
    """The attention weights of one layer, [B, heads, queries, keys]."""
    with torch.no_grad(), af.look(model, f"{side}.blocks.{layer}.self.weights") as seen:
        model(**batch)
    (found,) = [seen[point] for point in model.points if point in seen]
    return found


def ids(n: int = 10, rows: int = 2) -> Tensor:
    return torch.randint(3, 200, (rows, n), generator=torch.Generator().manual_seed(1))


# Positions


@pytest.mark.parametrize("name", DECODERS)
def test_alibi_penalizes_distance_by_slopes(name: str) -> None:
    """The log of two weights differs by the scores' difference and the slopes of Press et al. (2^-2 … 2^-8)."""
    model = built(name, positions="alibi", n_heads=4, n_kv_heads=4)
    with torch.no_grad(), af.look(model, "*.0.self.weights", "*.0.self.query", "*.0.self.key") as seen:
        model(input_ids=ids())
    query, key, found = (seen[f"decoder.blocks.0.self.{point}"] for point in ("query", "key", "weights"))
    distance = (torch.arange(10)[:, None] - torch.arange(10)).abs()
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64).view(1, 4, 1, 1)
    scores = query @ key.mT / query.shape[-1] ** 0.5 - slopes * distance
    expected = scores.masked_fill(torch.ones(10, 10).triu(1).bool(), float("-inf")).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi", "xl", "none"])
def test_relative_positions_do_not_change_with_a_shift(positions: str) -> None:
    """A text that stands behind padding gives the same answers."""
    model = built("gpt2-tiny", positions=positions)
    real = ids(6)
    padded = F.pad(real, (4, 0), value=0)
    mask = F.pad(torch.ones_like(real), (4, 0))
    with torch.no_grad():
        alone, shifted = model(input_ids=real).logits, model(input_ids=padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(shifted, alone, rtol=1e-9, atol=1e-9)


def test_rotary_2d_depends_on_rows_and_columns_apart() -> None:
    """With all patches alike, the scores of two cells depend on how many rows and columns they are apart."""
    model = built("vit-tiny", positions="rotary-2d", n_heads=2, class_token=False, pooling="mean")
    image = torch.randn(1, 3, 1, 1, dtype=torch.float64).expand(1, 3, 32, 32)
    found = weights(model, pixel_values=image).log()[0, 0].view(4, 4, 4, 4)  # from row, column to row, column
    one = found[0, 0, 0, 1] - found[0, 0, 0, 0]  # a column to the right, against oneself
    torch.testing.assert_close(found[2, 1, 2, 2] - found[2, 1, 2, 1], one)
    down = found[0, 0, 1, 0] - found[0, 0, 0, 0]
    torch.testing.assert_close(found[1, 2, 2, 2] - found[1, 2, 1, 2], down)
    torch.testing.assert_close(found[1, 1, 2, 2] - found[1, 1, 1, 1], one + down)
    assert abs(float(found[0, 0, 3, 0] - found[0, 0, 0, 0] - down)) > 1e-6


def test_rotary_2d_is_rotary_of_row_and_column() -> None:
    """Queries are rotated by Su et al.'s formula, half by the row and half by the column; the class token is not."""
    rotary = af.positions.Rotary2D(8)
    q = torch.randn(1, 1, 7, 8, dtype=torch.float64)
    turned, _, _ = rotary.prepare(af.Tokens(q[0], grid=(2, 3))).rotate(q, q, q)
    assert torch.equal(turned[0, 0, 0], q[0, 0, 0])
    for cell in range(6):
        for half, place in ((0, cell // 3), (1, cell % 3)):
            x = q[0, 0, cell + 1, 4 * half : 4 * half + 4]
            angles = place * torch.tensor([1.0, 10_000.0**-0.5], dtype=torch.float64)
            expected = torch.complex(x[:2], x[2:]) * torch.polar(torch.ones(2, dtype=torch.float64), angles)
            found = turned[0, 0, cell + 1, 4 * half : 4 * half + 4]
            torch.testing.assert_close(found, torch.cat([expected.real, expected.imag]))


def test_concatenated_positions_are_one_product_with_the_vectors() -> None:
    """W [x; p] = Wₓ x + Wₚ p."""
    model = built("gpt2-tiny", positions_combine="concat")
    inputs: Any = model.stages["decoder"].inputs
    with torch.no_grad(), af.look(model, "decoder.input") as seen:
        model(input_ids=ids())
    x, p = inputs.words.weight[ids()], inputs.positions.weight[:10]
    width = x.shape[-1]
    expected = x @ inputs.join.weight[:, :width].T + p @ inputs.join.weight[:, width:].T + inputs.join.bias
    torch.testing.assert_close(seen["decoder.input"], expected)


def test_positions_of_a_network_are_added_and_go_beyond_the_table() -> None:
    model = built("gpt2-tiny", positions="network", max_length=8)
    inputs: Any = model.stages["decoder"].inputs
    with torch.no_grad(), af.look(model, "decoder.input") as seen:
        model(input_ids=ids(12))
        added = seen["decoder.input"] - inputs.words.weight[ids(12)]
    codes = af.positions.sinusoids(torch.arange(12) * 1000 / 8, 32)
    up, down = inputs.positions.up, inputs.positions.down
    expected = F.gelu(codes @ up.weight.T + up.bias) @ down.weight.T + down.bias
    torch.testing.assert_close(added, expected.detach().expand_as(added))


def test_two_encodings_fill_two_slots() -> None:
    model = built("bert-tiny", positions="learned+relative", head="base")
    names = set(dict(model.named_parameters()))
    assert {"encoder.inputs.positions.weight", "encoder.positions.weight"} <= names


# Masks


def distances(n: int) -> Tensor:
    return torch.arange(n)[:, None] - torch.arange(n)


@pytest.mark.parametrize(
    ("name", "mask", "seen"),
    [
        ("bert-tiny", "window:3", lambda d: d.abs() < 3),
        ("gpt2-tiny", "window:3", lambda d: (d >= 0) & (d < 3)),
        ("bert-tiny", "dilated:2,3", lambda d: (d.abs() % 2 == 0) & (d.abs() <= 6)),
        ("gpt2-tiny", "dilated:3,1", lambda d: (d >= 0) & (d % 3 == 0) & (d <= 3)),
        ("bert-tiny", "causal", lambda d: d >= 0),
        ("gpt2-tiny", "prefix:4", lambda d: (d >= 0) | (torch.arange(d.shape[1]) < 4)),
    ],
)
def test_weights_are_zero_outside_of_the_mask(name: str, mask: str, seen: Any) -> None:
    found = weights(built(name, mask=mask, positions="none"), input_ids=ids())
    assert torch.equal(found > 0, seen(distances(10)).expand_as(found))


def test_layers_take_turns() -> None:
    model = built("gpt2-tiny", n_layers=3, mask="all,dilated:2,1,window:2")
    allowed = [(weights(model, layer, input_ids=ids()) > 0)[0, 0] for layer in range(3)]
    d = distances(10)
    assert torch.equal(allowed[0], d >= 0) and torch.equal(allowed[1], (d == 0) | (d == 2))
    assert torch.equal(allowed[2], (d >= 0) & (d < 2))


def test_local_2d_sees_neighbors_and_the_class_token() -> None:
    found = weights(built("vit-tiny", mask="local-2d:1"), pixel_values=torch.randn(1, 3, 32, 32).double())[0, 0] > 0
    cell = torch.arange(16)
    row, column = cell // 4, cell % 4
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    assert torch.equal(found[1:, 1:], near) and bool(found[0].all()) and bool(found[:, 0].all())


def test_the_loss_leaves_out_words_that_a_prefix_shows() -> None:
    model = built("gpt2-tiny", mask="prefix:4")
    real = ids(8)
    with torch.no_grad():
        out = model(input_ids=real, labels=real)
    expected = F.cross_entropy(out.logits[:, 3:-1].flatten(0, 1), real[:, 4:].flatten())
    torch.testing.assert_close(out.loss, expected)


# Scores


@pytest.mark.parametrize("score", ["dot", "general", "additive", "cosine"])
def test_scores(score: str) -> None:
    """Each as its formula says, computed here for one pair at a time."""
    model = built("bert-tiny", score=score, positions="none", head="base")
    part: Any = model.stages["encoder"].stack.blocks[0].sublayers["self"].part  # type: ignore[union-attr]
    with torch.no_grad(), af.look(model, "*.0.self.weights", "*.0.self.query", "*.0.self.key") as seen:
        model(input_ids=ids(5, 1))
    q, k, found = (seen[f"encoder.blocks.0.self.{point}"][0] for point in ("query", "key", "weights"))
    one = part.score
    formulas: dict[str, Any] = {
        "dot": lambda q, k, h: q @ k,
        "general": lambda q, k, h: q @ one.weight @ k,
        "additive": lambda q, k, h: one.value @ torch.tanh(one.query @ q + one.key @ k),
        "cosine": lambda q, k, h: q @ k / q.norm() / k.norm() * one.log_scale[h, 0, 0].exp(),
    }
    for head, i in itertools.product(range(4), range(5)):
        scores = torch.stack([formulas[score](q[head, i], k[head, j], head) for j in range(5)])
        torch.testing.assert_close(found[head, i], scores.softmax(0).detach())


# Every family


CACHED = [
    *({"positions": positions} for positions in ("alibi", "rotary", "relative", "xl", "network", "sinusoidal")),
    *({"mask": mask} for mask in ("window:3", "all,window:2", "dilated:2,2", "prefix:4")),
    *({"score": score} for score in ("general", "additive", "cosine")),
    {"positions": "learned+relative", "positions_combine": "concat"},
    {"norm": "rms", "norm_order": "sandwich", "activation": "relu"},
]


@pytest.mark.parametrize("change", CACHED, ids=lambda change: "-".join(map(str, change.values())))
def test_cached_is_uncached_and_batched_is_single(change: dict[str, str]) -> None:
    model = built("gpt2-tiny", **change)
    real = ids(10)
    mask = torch.ones_like(real)
    mask[1, :3] = 0  # left-padded
    with torch.no_grad():
        whole = model(input_ids=real, attention_mask=mask).logits
        alone = model(input_ids=real[1:, 3:]).logits
        step = model(input_ids=real[:, :7], attention_mask=mask[:, :7], use_cache=True)
        parts = [step.logits]
        for i in range(7, 10):
            step = model(
                input_ids=real[:, i : i + 1],
                attention_mask=mask[:, : i + 1],
                past_key_values=step.past_key_values,
                use_cache=True,
            )
            parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole[1:, 3:], alone, rtol=1e-9, atol=1e-9)


def test_packed_rows_of_an_encoder_decoder_are_rotated_by_their_positions() -> None:
    """With an uneven batch all rows are packed, those of the decoder too, which have no mask of their own."""
    model = built("transformer-tiny", positions="rotary")
    source, target = ids(8), ids(6)
    mask = torch.ones_like(source)
    mask[1, 3:] = 0
    with torch.no_grad():
        both = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        alone = model(input_ids=source[1:, :3], decoder_input_ids=target[1:]).logits
    torch.testing.assert_close(both[1:], alone, rtol=1e-9, atol=1e-9)


def differs(name: str, change: dict[str, Any], folder: Path) -> None:
    """It builds, differs from the family's own, saves and loads equal, and learns in two steps."""
    torch.manual_seed(0)
    model, batch = af.build(name, **change), training_batch(name)
    for parameter in model.parameters():  # a table that begins with zeros would show nothing
        if parameter.requires_grad and not bool(parameter.any()):
            torch.nn.init.normal_(parameter.data, std=0.5)
    model.eval().save(folder / name)
    again = af.load(folder / name, optimize=False, device="cpu")
    assert again.config == model.config
    with torch.no_grad():
        found, expected = flat(again(**batch)), flat(model(**batch))
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(2):
        out = model(**batch)
        loss = out["loss"] if "loss" in out else next(v for k, v in out.items() if k.endswith("embeds")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert bool(torch.isfinite(loss))


def sensible(name: str) -> list[dict[str, Any]]:
    """The changes of one setting that make sense for a family."""
    config: Any = recipe(name).config
    alone = {"relative_position_bias": "none"} if "relative_position_bias" in config.field_names() else {}  # BEiT's
    changes: list[dict[str, Any]] = [{"positions": kind, **alone} for kind in config.position_kinds]
    numbers = {"window": ":3", "dilated": ":2,2", "local-2d": ":1", "prefix": ":3"}
    masks = [kind for kind in config.mask_kinds if kind != "local-2d" or config.grid is not None]
    changes += [{"mask": kind + numbers.get(kind, "")} for kind in masks]
    uncapped = {"score_cap": None} if getattr(config, "score_cap", None) is not None else {}  # Gemma 2's, of one score
    changes += [{"score": score, **uncapped} for score in ("scaled", "dot", "general", "additive", "cosine")]
    changes += [{"norm": norm} for norm in ("layer", "rms")]
    changes += [{"activation": activation} for activation in ("gelu", "gelu_tanh", "relu", "silu")]
    orders = [order for order in ("pre", "post", "sandwich") if order != "post" or not config.parallel]
    return changes + [{"norm_order": order} for order in orders]


def grid() -> list[tuple[str, dict[str, Any]]]:
    return [(name, change) for name in FAMILIES for change in sensible(name)]


@pytest.mark.parametrize(("name", "change"), grid()[::17], ids=str)
def test_a_sample_of_settings_and_families(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    differs(name, change, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_setting_of_every_family(name: str, tmp_path: Path) -> None:
    for i, change in enumerate(sensible(name)):
        differs(name, change, tmp_path / str(i))


# What makes no sense


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2-tiny", {"positions": "alibbi"}, '"alibbi" is unknown here.*Did you mean "alibi"'),
        ("gpt2-tiny", {"positions": "rotary+alibi"}, "only one of rotary and alibi"),
        ("gpt2-tiny", {"positions": "learned+sinusoidal"}, "only one of learned and sinusoidal"),
        ("gpt2-tiny", {"positions": "rotary-2d"}, '"rotary-2d" is unknown here'),
        ("gpt2-tiny", {"mask": "window"}, "must be written as window:N"),
        ("gpt2-tiny", {"mask": "dilated:2"}, "must be written as dilated:N,K"),
        ("gpt2-tiny", {"mask": "windw:4"}, 'Did you mean "window"'),
        ("gpt2-tiny", {"mask": "window:0"}, "whole numbers from 1 on"),
        ("gpt2-tiny", {"mask": "local-2d:2"}, "is for images"),
        ("gpt2-tiny", {"score": "cosin"}, 'Did you mean "cosine"'),
        ("gpt2-tiny", {"activation": "gelo"}, '"gelu"'),
        ("gptneox-tiny", {"norm_order": "post"}, "parallel"),
        ("gpt2-tiny", {"norm_order": "before"}, "'pre'"),
        ("mae-tiny", {"positions": "rotary"}, '"rotary" is unknown here'),
        ("vit-tiny", {"positions": "rotary-2d", "d_model": 24, "n_heads": 4}, "multiple of 4"),
    ],
)
def test_refused_in_one_sentence(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(af.ConfigError, match=message) as error:
        af.build(name, **change)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt2-tiny", {"positions": "alibi"}),
        ("bert-tiny", {"mask": "window:64"}),
        ("t5-tiny", {"positions": "rotary"}),
        ("llama-tiny", {"score": "cosine"}),
        ("vit-tiny", {"norm": "rms"}),
        ("bart-tiny", {"norm_order": "pre"}),
        ("gpt2-tiny", {"positions_combine": "concat"}),
    ],
)
def test_hugging_face_form_refuses_other_settings(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match=f"^{next(iter(change))} is"):
        af.build(name, **change).save(tmp_path / "folder", format="hf")


def test_from_the_command_line(tmp_path: Path) -> None:
    """--set model.positions=alibi trains such a model and saves the setting with it."""
    (tmp_path / "data.txt").write_text("the cat sat on the mat. " * 40)
    more = {"model.positions": "alibi", "model.mask": "window:8", "model.score": "cosine"}
    size = {"model.n_layers": 1, "model.d_model": 16, "model.n_heads": 2, "tokenizer.kind": "char"}
    pace = {"steps": 1, "batch_size": 2, "data.max_length": 8, "device": "cpu"}
    af.train("generate", recipe="gpt2-tiny", data=tmp_path / "data.txt", out=tmp_path / "out", **size, **more, **pace)
    config: Any = af.load(tmp_path / "out", device="cpu").config
    assert (config.positions, config.mask, config.score) == ("alibi", "window:8", "cosine")
