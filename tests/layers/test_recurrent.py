"""The recurrent parts against the papers' formulas, written out step by step in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation.cache_marks import rewind, set_mark
from tests.batches import build, ids, padded, pair


def _lstm(cell: Any, layer: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter and Schmidhuber's cell with a forget gate: i, f, g, o."""
    pick = {name: getattr(cell, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    raw = pick["weight_ih"] @ x + pick["bias_ih"] + pick["weight_hh"] @ h + pick["bias_hh"]
    i, f, g, o = raw.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(cell: Any, suffix: str, x: Tensor, h: Tensor) -> Tensor:
    a = getattr(cell, f"weight_ih_{suffix}") @ x + getattr(cell, f"bias_ih_{suffix}")
    b = getattr(cell, f"weight_hh_{suffix}") @ h + getattr(cell, f"bias_hh_{suffix}")
    (ar, az, an), (br, bz, bn) = a.chunk(3), b.chunk(3)
    z = torch.sigmoid(az + bz)
    return (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h


def _part(model: af.Model, stage: str) -> Any:
    return next(iter(model.stages[stage].stack.blocks[0].sublayers.values())).part


def _words(model: af.Model, stage: str, row: Tensor) -> Tensor:
    return model.stages[stage].inputs.words.weight[row]


def _speak(model: af.Model, vector: Tensor) -> Tensor:
    head = model.heads["language"]
    return head.words.weight @ vector + head.bias


def _deep(cell: Any, x: Tensor, states: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    new = []
    for layer, (h, c) in enumerate(states):
        new.append(_lstm(cell, layer, x, h, c))
        x = new[-1][0]
    return new


def _encode_lstm(model: af.Model, source: Tensor, reverse: bool) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    cell = _part(model, "encoder").cell
    zeros = torch.zeros(cell.hidden_size, dtype=torch.float64)
    states = [(zeros, zeros)] * cell.num_layers
    vectors = _words(model, "encoder", source)
    tops = []
    for x in vectors.flip(0) if reverse else vectors:
        states = _deep(cell, x, states)
        tops.append(states[-1][0])
    return torch.stack(tops[::-1] if reverse else tops), states


def _soft(scores: Tensor) -> Tensor:
    chance = (scores - scores.max()).exp()
    return chance / chance.sum()


def _sutskever(model: af.Model, source: Tensor, target: Tensor) -> tuple[Tensor, None]:
    _, states = _encode_lstm(model, source, model.config.reverse)
    last = states[-1][0]
    logits = []
    for word in _words(model, "decoder", target):
        x = torch.cat([word, last]) if model.config.context_every_step else word
        states = _deep(_part(model, "decoder").cell, x, states)
        logits.append(_speak(model, states[-1][0]))
    return torch.stack(logits), None


def _luong(model: af.Model, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    keys, states = _encode_lstm(model, source, model.config.reverse)
    part = _part(model, "decoder")
    fed = torch.zeros(part.config.d_out, dtype=torch.float64)
    logits, seen = [], []
    for word in _words(model, "decoder", target):
        states = _deep(part.cell, torch.cat([word, fed]) if model.config.input_feeding else word, states)
        h = states[-1][0]
        if model.config.score == "dot":
            scores = keys @ h
        elif model.config.score == "general":
            scores = torch.stack([h @ part.score.weight @ key for key in keys])
        else:
            scores = torch.stack(
                [part.score.value @ torch.tanh(part.score.query @ h + part.score.key @ key) for key in keys]
            )
        weights = _soft(scores)
        fed = torch.tanh(part.out.weight @ torch.cat([weights @ keys, h]))
        seen.append(weights)
        logits.append(_speak(model, fed))
    return torch.stack(logits), torch.stack(seen)


def _bahdanau(model: af.Model, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    cell, part = _part(model, "encoder").cell, _part(model, "decoder")
    vectors, width = _words(model, "encoder", source), model.config.d_hidden
    ahead, back = [torch.zeros(width, dtype=torch.float64)], [torch.zeros(width, dtype=torch.float64)]
    for x in vectors:
        ahead.append(_gru(cell, "l0", x, ahead[-1]))
    for x in vectors.flip(0):
        back.append(_gru(cell, "l0_reverse", x, back[-1]))
    keys = torch.stack([torch.cat(both) for both in zip(ahead[1:], back[:0:-1], strict=True)])
    state = torch.tanh(part.start.weight @ keys[0][width:] + part.start.bias)
    logits, seen = [], []
    for word in _words(model, "decoder", target):
        score = part.score
        weights = _soft(torch.stack([score.value @ torch.tanh(score.query @ state + score.key @ key) for key in keys]))
        context = weights @ keys
        pairs = part.out.weight @ torch.cat([state, word, context]) + part.out.bias
        state = _gru(part.cell, "l0", torch.cat([word, context]), state)
        seen.append(weights)
        logits.append(_speak(model, torch.stack([pairs[2 * i : 2 * i + 2].max() for i in range(len(pairs) // 2)])))
    return torch.stack(logits), torch.stack(seen)


CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("sutskever-tiny", _sutskever, {}),
    ("sutskever-tiny", _sutskever, {"reverse": False}),
    ("sutskever-tiny", _sutskever, {"context_every_step": True}),
    ("bahdanau-tiny", _bahdanau, {}),
    *(
        ("luong-tiny", _luong, {"score": score, "input_feeding": feed})
        for score in ("dot", "general", "concat")
        for feed in (True, False)
    ),
]


@pytest.mark.parametrize(
    ("name", "formula", "overrides"), CASES, ids=lambda value: value.__name__ if callable(value) else str(value)[:40]
)
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_equals_its_formulas(name: str, formula: Any, overrides: dict[str, Any], side: str) -> None:
    """Logits and alignments of an uneven batch equal the formulas on each row alone."""
    model = build(name, **overrides)
    batch = pair(side)
    out = model(**batch, output_attentions=True)
    for row in range(3):
        reads, writes = batch["attention_mask"][row].bool(), batch["decoder_attention_mask"][row].bool()
        logits, weights = formula(model, batch["input_ids"][row][reads], batch["decoder_input_ids"][row][writes])
        torch.testing.assert_close(out.logits[row][writes], logits, rtol=0, atol=1e-9)
        if weights is not None:
            found = out.cross_attentions[0][row, 0][writes]
            torch.testing.assert_close(found[:, reads], weights, rtol=0, atol=1e-9)
            assert bool((found[:, ~reads] == 0).all())


@pytest.mark.parametrize("name", ["bahdanau-tiny", "luong-tiny"])
@torch.no_grad()
def test_alignments_in_generation(name: str) -> None:
    """Step by step the taps show the rows of the map that a pass over the finished answer shows."""
    model = build(name)
    source, mask = padded(ids(), "right")
    with af.look(model, "decoder.blocks.0.cross.weights") as seen:
        answer = model.generate(input_ids=source, attention_mask=mask, max_new_tokens=6, eos_token_id=255)
    steps = torch.cat(seen.matching("*"), dim=2)
    with af.look(model, "decoder.blocks.0.cross.weights") as whole:
        model(input_ids=source, attention_mask=mask, decoder_input_ids=answer[:, :-1])
    expected = whole["decoder.blocks.0.cross.weights"]
    assert expected.shape == (3, 1, answer.shape[1] - 1, source.shape[1])
    torch.testing.assert_close(steps, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["sutskever-tiny", "bahdanau-tiny", "luong-tiny", "bytenet-tiny", "convs2s-tiny", "transformer-tiny"]
)
@torch.no_grad()
def test_beams_follow_their_rows(name: str) -> None:
    """States, what was fed and the source's summary are reordered, marked and rewound together."""
    model = build(name)
    source, mask = padded(ids(), "left")
    target = torch.stack(ids(3, (4, 4, 4)))
    rows = torch.tensor([2, 0, 0])
    state = model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=True).past_key_values
    mark = set_mark(state)
    model(decoder_input_ids=target[:, :2], past_key_values=state)
    state.reorder(rows)
    rewind(state, mark)
    step = model(decoder_input_ids=target[:, :1], past_key_values=state).logits[:, 0]
    grown = torch.cat([target[rows], target[:, :1]], dim=1)
    whole = model(input_ids=source[rows], attention_mask=mask[rows], decoder_input_ids=grown).logits[:, -1]
    torch.testing.assert_close(step, whole, rtol=0, atol=1e-9)


def test_a_decoder_without_its_encoders_states_says_so() -> None:
    model = build("sutskever-tiny")
    given = torch.zeros(1, 3, 48, dtype=torch.float64)
    with pytest.raises(af.InputError, match="last states"):
        model(encoder_outputs=given, decoder_input_ids=torch.tensor([[1, 2]]))


def test_no_hugging_face_form(tmp_path: Any) -> None:
    with pytest.raises(af.ConfigError, match="No Hugging Face class"):
        af.build("luong-tiny").save(tmp_path / "folder", format="hf")
