"""The promises of docs and design, through whole tiny models: batched = single, packed = padded, cached = uncached."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.tokens import Tokens
from anyformer.generation.cache_marks import clone, rewind, set_mark
from tests.batches import BATCHES, SIZES, Batch, build, cast, ids, pair, text

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
both_types = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
both_sides = pytest.mark.parametrize("side", ["right", "left"])
both_ways = pytest.mark.parametrize("share", [0.95, 0.0], ids=["packed", "padded"])

# Fields with one value a token of the source (mask "attention_mask") or of the target, by recipe.
SOURCE, TARGET = "attention_mask", "decoder_attention_mask"
ANCESTORS = ("sutskever-tiny", "bahdanau-tiny", "luong-tiny", "bytenet-tiny", "convs2s-tiny")
BIASED = ("mpnet-tiny", "t5-tiny")  # a bias of distances is built for whole rows, so nothing is packed
PAIRS = ("transformer-tiny", "bart-tiny", "t5-tiny", "encoder-decoder-tiny")
TEXT: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "bert-tiny": ({"head": "masked"}, {"logits": SOURCE}),
    "bert-tiny, bare": ({"head": "base"}, {"last_hidden_state": SOURCE, "pooler_output": None}),
    "bert-tiny, classes": ({"head": "classify"}, {"logits": None}),
    "bert-tiny, tags": ({"head": "tag"}, {"logits": SOURCE}),
    "bert-tiny, span": ({"head": "span"}, {"start_logits": SOURCE, "end_logits": SOURCE}),
    "gpt2-tiny": ({}, {"logits": SOURCE}),
    "transformer-tiny": ({}, {"logits": TARGET, "encoder_last_hidden_state": SOURCE}),
    "perceiver-tiny": ({}, {"logits": None}),
    "mamba-tiny": ({}, {"logits": SOURCE}),
    "mlp-mixer-tiny": ({}, {"logits": SOURCE}),
    **{name: ({}, {"logits": TARGET, "encoder_last_hidden_state": SOURCE}) for name in ANCESTORS},
    "sutskever-tiny, shown": ({"context_every_step": True}, {"logits": TARGET}),
    "luong-tiny, not fed": ({"input_feeding": False, "score": "concat"}, {"logits": TARGET}),
    **{f"{family}-tiny": ({}, {"logits": SOURCE}) for family in ("roberta", "distilbert", "mpnet", "roformer")},
    "electra-tiny": ({"head": "masked"}, {"logits": SOURCE}),
    "electra-tiny, replaced": ({}, {"logits": SOURCE}),
    **{name: ({}, {"logits": TARGET, "encoder_last_hidden_state": SOURCE}) for name in PAIRS[1:]},
}
every_text = pytest.mark.parametrize("name", TEXT)


def _model(name: str, dtype: torch.dtype = torch.float64) -> af.Model:
    return build(name.split(",")[0], dtype, **TEXT[name][0])


def _batch(name: str, side: str) -> Batch:
    return pair(side) if name.split(",")[0] in (*TRANSLATORS, *PAIRS) else text(side)


def _close(ours: Tensor, theirs: Tensor, what: str) -> None:
    assert ours.shape == theirs.shape, what
    assert ours.dtype == theirs.dtype
    scale = max(1.0, float(theirs.detach().abs().max()))
    worst = float((ours - theirs).detach().abs().max()) / scale
    assert worst <= TOLERANCE[ours.dtype], f"{what}: off by {worst:.1e}"


def _alone(batch: Batch, row: int) -> Batch:
    """One row without its padding and without a mask."""
    kept = {}
    for name, mask_name in (("input_ids", SOURCE), ("decoder_input_ids", TARGET)):
        if name in batch:
            kept[name] = batch[name][row][batch[mask_name][row].bool()].unsqueeze(0)
    return kept


def _hidden(out: af.Output) -> list[tuple[str, str, Tensor]]:
    """(field, mask, value) of every hidden state of an output."""
    found = []
    for field, mask in (
        ("hidden_states", SOURCE),
        ("encoder_hidden_states", SOURCE),
        ("decoder_hidden_states", TARGET),
    ):
        found += [(f"{field}[{i}]", mask, value) for i, value in enumerate(out.get(field, ()))]
    return found


def _fields(name: str, out: af.Output) -> list[tuple[str, str | None, Tensor]]:
    plain = [(field, mask, out[field]) for field, mask in TEXT[name][1].items()]
    # Perceiver's hidden states are latents, one for all tokens.
    return plain + [(f, None if name == "perceiver-tiny" else mask, value) for f, mask, value in _hidden(out)]


@both_types
@both_sides
@every_text
def test_batched_is_single(name: str, side: str, dtype: torch.dtype) -> None:
    """Each row of an uneven batch gets what it gets alone: logits, hidden states and pooled vectors."""
    model, batch = _model(name, dtype), _batch(name, side)
    together = _fields(name, model(**batch, output_hidden_states=True))
    for row in range(len(SIZES)):
        alone = _fields(name, model(**_alone(batch, row), output_hidden_states=True))
        for (field, mask, ours), (_, _, theirs) in zip(together, alone, strict=True):
            real = ours[row] if mask is None else ours[row][batch[mask][row].bool()]
            _close(real, theirs[0], f"{field} of row {row}")


@pytest.mark.parametrize("name", ["vit-tiny", "detr-tiny"])
def test_batched_pictures_are_single(name: str) -> None:
    """An image on its canvas gives the same with other images beside it as without."""
    model, batch = build(name), cast(BATCHES[name]("right"), torch.float64)
    fields = ("logits", "pred_boxes", "last_hidden_state") if name == "detr-tiny" else ("logits",)
    together = model(**batch)
    for row in range(2):
        alone = model(**{key: value[row : row + 1] for key, value in batch.items()})
        for field in fields:
            _close(together[field][row], alone[field][0], f"{field} of image {row}")


@both_types
@both_sides
@pytest.mark.parametrize("name", [name for name in TEXT if name not in BIASED])
def test_packed_is_padded(name: str, side: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the padding out of the computation changes no field."""
    model, batch = _model(name, dtype), _batch(name, side)
    packed = _fields(name, _counted(model, batch, monkeypatch, packs=True))
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", 0.0)
    padded = _fields(name, _counted(model, batch, monkeypatch, packs=False))
    for (field, _, ours), (_, _, theirs) in zip(packed, padded, strict=True):
        _close(ours, theirs, field)


def _counted(model: af.Model, batch: Batch, monkeypatch: pytest.MonkeyPatch, packs: bool) -> af.Output:
    """The output, and a check that rows were (or were not) packed on the way."""
    times = 0
    pack = Tokens.pack

    def counted(tokens: Tokens) -> Tokens:
        nonlocal times
        times += 1
        return pack(tokens)

    with monkeypatch.context() as patch:
        patch.setattr(Tokens, "pack", counted)
        out = model(**batch, output_hidden_states=True)
    assert (times > 0) == packs
    return out


def test_packed_pictures_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for DETR, whose encoder packs the cells of images that are smaller than their canvas."""
    model, batch = build("detr-tiny"), cast(BATCHES["detr-tiny"]("right"), torch.float64)
    packed = _counted(model, batch, monkeypatch, packs=True)
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", 0.0)
    padded = _counted(model, batch, monkeypatch, packs=False)
    for field in ("logits", "pred_boxes", "last_hidden_state", "encoder_last_hidden_state"):
        _close(packed[field], padded[field], field)


@both_ways
@both_sides
@every_text
def test_padded_positions_are_zeros(name: str, side: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values at padded positions mean nothing and are zeros, in every field and either way of computing."""
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", share)
    model, batch = _model(name), _batch(name, side)
    for field, mask, value in _fields(name, model(**batch, output_hidden_states=True)):
        if mask is not None:
            real = batch[mask].bool()
            assert (value[~real] == 0).all(), field
            assert (value[real].reshape(int(real.sum()), -1) != 0).any(-1).all(), field


@both_ways
@both_sides
@every_text
def test_what_stands_at_the_padding_does_not_matter(
    name: str, side: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other words at the padding give the same output, bit for bit."""
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", share)
    model, batch = _model(name), _batch(name, side)
    other = dict(batch)
    for field, mask in (("input_ids", SOURCE), ("decoder_input_ids", TARGET)):
        if field in batch:
            other[field] = batch[field].where(batch[mask].bool(), 77)
    ours, theirs = model(**batch, output_hidden_states=True), model(**other, output_hidden_states=True)
    for (field, _, a), (_, _, b) in zip(_fields(name, ours), _fields(name, theirs), strict=True):
        assert torch.equal(a, b), field


@both_ways
@every_text
def test_a_row_without_a_real_token(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives zeros and no NaN, forwards and backwards, and the other rows do not notice it."""
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", share)
    model, batch = _model(name), _batch(name, "right")
    emptied = {key: value.clone() for key, value in batch.items()}
    for mask in {SOURCE, TARGET} & batch.keys():
        emptied[mask][1] = 0
    before = _fields(name, model(**batch, output_hidden_states=True))
    after = _fields(name, model(**emptied, output_hidden_states=True))
    for (field, mask, ours), (_, _, theirs) in zip(after, before, strict=True):
        assert torch.isfinite(ours).all(), field
        _close(ours[[0, 2]], theirs[[0, 2]], field)
        assert mask is None or (ours[1] == 0).all(), field
    sum(value.sum() for _, _, value in after).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@both_ways
@every_text
def test_a_batch_without_a_real_token(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all to read is no error either; the shapes stay and nothing is NaN."""
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", share)
    model, batch = _model(name), _batch(name, "right")
    shapes = [value.shape for _, _, value in _fields(name, model(**batch, output_hidden_states=True))]
    for mask in {SOURCE, TARGET} & batch.keys():
        batch[mask] = torch.zeros_like(batch[mask])
    fields = _fields(name, model(**batch, output_hidden_states=True))
    assert [value.shape for _, _, value in fields] == shapes
    assert all(torch.isfinite(value).all() for _, _, value in fields)


def test_an_empty_row_is_pooled_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of a row without a real token is that of zeros, packed and padded."""
    model, batch = _model("bert-tiny, classes"), text("right")
    batch[SOURCE][1] = 0
    packed = model(**batch).logits
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", 0.0)
    _close(model(**batch).logits, packed, "logits")


def test_every_decoder_layer_is_shown() -> None:
    """DETR's auxiliary losses read each decoder layer after the final norm: one a layer, and not what came in."""
    model, batch = build("detr-tiny", auxiliary_loss=True), cast(BATCHES["detr-tiny"]("right"), torch.float64)
    with af.look(model, "decoder.blocks.[0-9].output") as seen:
        out = model(**batch)
    norm = model.stages["decoder"].stack.final_norm
    assert len(out.intermediate_hidden_states) == len(seen) == 2
    for layer, value in zip(out.intermediate_hidden_states, seen.values(), strict=True):
        _close(layer, norm(value), "intermediate_hidden_states")


LOSSES: dict[str, dict[str, Any]] = {
    "bert-tiny": {"head": "masked"},
    "bert-tiny, tags": {"head": "tag", "n_labels": 256},
    "gpt2-tiny": {},
    "transformer-tiny": {},
    "mamba-tiny": {},
    "luong-tiny": {},
    "convs2s-tiny": {},
}


@both_types
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_packed_and_padded_losses_agree(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training on packed rows is training on padded ones: the same loss and the same gradient of every parameter."""
    batch = _batch(name, "right")
    if name in TRANSLATORS:
        batch["labels"] = batch["decoder_input_ids"].masked_fill(batch[TARGET] == 0, -100)
    else:
        batch["labels"] = batch["input_ids"].masked_fill(batch[SOURCE] == 0, -100)
    results = []
    for share in (0.95, 0.0):
        monkeypatch.setattr("anyformer.stage.PACK_BELOW", share)
        model = build(name.split(",")[0], dtype, **LOSSES[name])
        out = _counted(model, batch, monkeypatch, packs=share > 0)
        out.loss.backward()
        results.append((out.loss, {key: p.grad for key, p in model.named_parameters() if p.grad is not None}))
    (loss, ours), (expected, theirs) = results
    _close(loss, expected, "loss")
    assert ours.keys() == theirs.keys()
    assert len(ours) > 15
    for key in ours:
        _close(ours[key], theirs[key], key)


def _steps(model: af.Model, batch: Batch, name: str, chunks: list[int], masked: bool, grown: bool) -> Tensor:
    """Logits of step-by-step decoding. `grown`: the mask of past and present is handed in, else of the present."""
    mask_name = TARGET if name == "decoder_input_ids" else SOURCE
    rest = {key: value for key, value in batch.items() if key not in (name, mask_name)}
    state, logits, start = None, [], 0
    for n in chunks:
        stop = start + n
        given = {**rest, name: batch[name][:, start:stop]}
        if masked:
            given[mask_name] = batch[mask_name][:, 0 if grown else start : stop]
        how = {"use_cache": True} if state is None else {"past_key_values": state}
        out = model(**given, **how)
        state = out.past_key_values
        logits.append(out.logits)
        start = stop
    return torch.cat(logits, dim=1)


# Families that decode step by step, and those of them that read a source first.
DECODERS = ("gpt2-tiny", "mamba-tiny", "transformer-xl-tiny", "mlp-mixer-tiny")
TRANSLATORS = ("transformer-tiny", *ANCESTORS)
every_decoder = pytest.mark.parametrize("name", DECODERS)
every_translator = pytest.mark.parametrize("name", TRANSLATORS)
CHUNKS = {"token by token": [1] * 9, "prefill": [6, 1, 1, 1], "chunks": [2, 4, 3], "at once": [9]}


@both_types
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("grown", [True, False], ids=["whole mask", "mask of the step"])
@every_decoder
@torch.no_grad()
def test_cached_decoder_is_uncached(
    name: str, grown: bool, padding: str, chunks: list[int], dtype: torch.dtype
) -> None:
    """Decoding with a cache gives the logits of one pass over everything, at each real token."""
    model = build(name, dtype)
    masked = padding != "none"
    batch = text(padding) if masked else {"input_ids": torch.stack(ids(sizes=(9, 9, 9)))}
    whole = model(**batch).logits
    cached = _steps(model, batch, "input_ids", chunks, masked, grown)
    real = batch[SOURCE].bool() if masked else torch.ones(3, 9, dtype=torch.bool)
    _close(cached[real], whole[real], "logits")


@both_types
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 3], [7]], ids=["token by token", "chunks", "at once"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@every_translator
@torch.no_grad()
def test_cached_translator_is_uncached(name: str, padding: str, chunks: list[int], dtype: torch.dtype) -> None:
    """The same for a decoder that attends to an uneven source, encoded once."""
    model, masked = build(name, dtype), padding != "none"
    batch = pair(padding if masked else "right")
    if not masked:
        batch["decoder_input_ids"] = torch.stack(ids(2, (7, 7, 7)))
        del batch[TARGET]
    whole = model(**batch).logits
    cached = _steps(model, batch, "decoder_input_ids", chunks, masked, grown=True)
    real = batch[TARGET].bool() if masked else torch.ones(3, 7, dtype=torch.bool)
    _close(cached[real], whole[real], "logits")


@every_translator
@torch.no_grad()
def test_the_encoder_runs_once(name: str) -> None:
    """With a state at hand the source is not read again: the next step needs none."""
    model, batch = build(name), pair("right")
    del batch[TARGET]
    whole = model(**batch).logits
    start = model(**{**batch, "decoder_input_ids": batch["decoder_input_ids"][:, :3]}, use_cache=True)
    later = model(decoder_input_ids=batch["decoder_input_ids"][:, 3:], past_key_values=start.past_key_values)
    _close(later.logits, whole[:, 3:], "logits")


def _greedy(model: af.Model, values: Tensor, mask: Tensor, n: int, cached: bool) -> Tensor:
    made, state = values, None
    for _ in range(n):
        if cached:
            given = made if state is None else made[:, -1:]
            how = {"use_cache": True} if state is None else {"past_key_values": state}
            out = model(input_ids=given, attention_mask=mask, **how)
            state = out.past_key_values
        else:
            out = model(input_ids=made, attention_mask=mask)
        made = torch.cat([made, out.logits[:, -1:].argmax(-1)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return made[:, values.shape[1] :]


@both_types
@every_decoder
@torch.no_grad()
def test_greedy_ids_are_equal(name: str, dtype: torch.dtype) -> None:
    """Cached, uncached, left-padded in a batch and alone: the same words."""
    model, batch = build(name, dtype, tied=False), text("left")
    cached = _greedy(model, batch["input_ids"], batch[SOURCE], 12, cached=True)
    assert torch.equal(_greedy(model, batch["input_ids"], batch[SOURCE], 12, cached=False), cached)
    for row, words in enumerate(ids()):
        alone = _greedy(model, words.unsqueeze(0), torch.ones(1, len(words), dtype=torch.long), 12, cached=False)
        assert torch.equal(alone[0], cached[row])
    assert len(set(cached.flatten().tolist())) > 3  # not one word over and over


@every_decoder
@torch.no_grad()
def test_beams_follow_their_rows(name: str) -> None:
    """After `select` the rows go on from the memory of the rows they came from."""
    model, batch = build(name), text("left")
    rows, words = torch.tensor([2, 0, 0]), torch.tensor([[9], [10], [11]])
    out = model(**batch, use_cache=True)
    state = out.past_key_values
    state.reorder(rows)
    step = model(input_ids=words, past_key_values=state).logits[:, 0]
    grown = torch.cat([batch["input_ids"][rows], words], dim=1)
    mask = torch.cat([batch[SOURCE][rows], torch.ones(3, 1, dtype=torch.long)], dim=1)
    _close(step, model(input_ids=grown, attention_mask=mask).logits[:, -1], "logits")


@every_decoder
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 0]], ids=["same rows", "reordered"])
@torch.no_grad()
def test_a_rewound_state_goes_on_from_its_mark(name: str, rows: list[int]) -> None:
    """Tokens that were tried and taken back leave no trace, also when rows changed places in between."""
    model, batch = build(name), text("left")
    state = model(**batch, use_cache=True).past_key_values
    twin = clone(state)
    mark = set_mark(state)
    model(input_ids=torch.full((3, 4), 200), past_key_values=state)
    state.reorder(torch.tensor(rows))
    twin.reorder(torch.tensor(rows))
    rewind(state, mark)
    words = torch.tensor([[9, 12], [10, 13], [11, 14]])
    ours = model(input_ids=words, past_key_values=state).logits
    assert torch.equal(ours, model(input_ids=words, past_key_values=twin).logits)


@both_sides
def test_positions_given_are_positions_counted(side: str) -> None:
    """Positions come from the mask; saying them out loud changes nothing, saying others does."""
    model, batch = build("gpt2-tiny"), text(side)
    places = (batch[SOURCE].cumsum(1) - 1).clamp(min=0)
    plain = model(**batch).logits
    _close(model(**batch, position_ids=places).logits, plain, "logits")
    assert not torch.allclose(model(**batch, position_ids=places + 1).logits, plain)
