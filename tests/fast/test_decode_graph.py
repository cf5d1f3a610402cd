"""The step of fixed size that is recorded on a GPU: the same tokens as the loop whose memory grows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.cache import Cache, SelfAttentionCache
from anyformer.fast import decode_graph as graph
from anyformer.fast.static_cache import StaticCache
from anyformer.generation import engine

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
MODELS = (
    "gpt2-tiny",
    "image-transformer-tiny",
    "llama-tiny",
    "mistral-tiny",
    "gemma3-tiny",
    "gptneox-tiny",
    "transformer-tiny",
    "bart-tiny",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 3, "temperature": 0.8},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6},
    "rules": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
}


def make(name: str, device: str) -> af.Model:
    torch.manual_seed(1)
    model = af.build(name).eval().to(device)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(3)  # so that tokens differ
    return model.double() if device == "cpu" else model


def prompts(model: af.Model, padded: str | None) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(2))
    if padded is None:
        return {"input_ids": ids.to(model.device)}
    lost = torch.tensor([0, 3, 8, 1])[:, None]
    places = torch.arange(9)[None]
    mask = places >= lost if padded == "left" else places < 9 - lost
    return {"input_ids": ids.to(model.device), "attention_mask": mask.long().to(model.device)}


def both(model: af.Model, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Tensor, Tensor, int]:
    """What the growing and the fixed memory give, and how many steps went through the latter."""
    steps = []
    plain = graph.DecodeGraph._replay
    monkeypatch.setattr(engine, "can_capture", lambda *_: False)
    grown = model.generate(**options)
    monkeypatch.setattr(engine, "can_capture", lambda *_: True)
    monkeypatch.setattr(graph.DecodeGraph, "_replay", lambda self, *args: steps.append(1) or plain(self, *args))
    fixed = model.generate(**options)
    return grown, fixed, len(steps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_tokens(
    name: str, kind: str, padded: str | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name, device)
    options = {"max_new_tokens": 14, "eos_token_id": 7, "pad_token_id": 0, **prompts(model, padded), **OPTIONS[kind]}
    grown, fixed, steps = both(model, monkeypatch, **options)
    assert fixed.tolist() == grown.tolist()
    assert steps > 3


def test_a_window_looks_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far past the window, which the fixed memory keeps whole."""
    model = make("mistral-tiny", "cpu")
    options = {"max_new_tokens": 100, "eos_token_id": None, "pad_token_id": 0, **prompts(model, "left")}
    grown, fixed, steps = both(model, monkeypatch, **options)
    assert fixed.tolist() == grown.tolist() and steps == 99


@pytest.mark.parametrize(
    "way", [{}, {"local": "2d", "block": (2, 4), "memory": (1, 2)}], ids=["in a line", "in a plane"]
)
def test_blocks_of_a_picture(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Query blocks with memory blocks, to the end of the image, whose beginning the growing memory has forgotten."""
    torch.manual_seed(1)
    model = af.build("image-transformer-tiny", **way).eval().double()
    mask = torch.arange(9) >= torch.tensor([[0], [3], [8], [1]])
    ids = torch.randint(0, 256, (4, 9), generator=torch.Generator().manual_seed(2))
    options = {"input_ids": ids, "attention_mask": mask.long(), "max_new_tokens": 180, "do_sample": True, "seed": 1}
    grown, fixed, steps = both(model, monkeypatch, **options)
    assert fixed.tolist() == grown.tolist() and steps == 179


def test_a_kept_recording_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another prompt of the same size, another length: the same recording, and nothing left of the call before."""
    model = make("transformer-tiny", "cpu")
    for options in ({"num_beams": 3}, {}):
        for seed in (1, 2):
            ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(seed))
            grown, fixed, _ = both(model, monkeypatch, input_ids=ids, max_new_tokens=14, **options)
            assert fixed.tolist() == grown.tolist()
            monkeypatch.undo()
    assert len(graph.GRAPHS[model]) == 2


@pytest.mark.parametrize("every", [1, 3, 100])
def test_greedy_looks_for_the_end_now_and_then(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that end between two looks are cut where they ended."""
    monkeypatch.setattr(graph, "LOOK_EVERY", every)
    model = make("gpt2-tiny", "cpu")
    said = model.generate(**prompts(model, None), max_new_tokens=40, eos_token_id=None)[:, 9:]
    ends = [int(said[0, 4]), int(said[1, 7]), int(said[2, 1]), int(said[3, 2])]  # every row ends before 40
    options = {"max_new_tokens": 40, "eos_token_id": ends, "pad_token_id": 0, **prompts(model, None)}
    grown, fixed, steps = both(model, monkeypatch, **options)
    assert fixed.tolist() == grown.tolist()
    assert fixed.shape[1] < 30 and steps <= fixed.shape[1] + every


def test_what_can_be_recorded() -> None:
    """Keys alone, nobody watching, and a family whose step does not depend on its length."""
    for name, fits in (("gpt2-tiny", True), ("t5-tiny", False), ("mamba-tiny", False), ("bahdanau-tiny", False)):
        model = make(name, "cpu")
        ids = torch.randint(5, 60, (1, 4))
        start = ids[:, :1] if "decoder_input_ids" in model.names else None
        batch = {"input_ids": ids}
        state, _ = engine.prefill(model, batch, start)
        assert all(graph.is_static(part) for part in model.modules()) & graph.keys_only(state) == fits, name
        assert not graph.can_capture(model, state, 100)  # not on a CPU


def test_rows_are_laid_side_by_side() -> None:
    """Whatever padding lay before them, real tokens end at the same column, in their order."""
    model = make("gpt2-tiny", "cpu")
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]])
    state = Cache()
    model(input_ids=torch.randint(5, 60, (3, 4)), attention_mask=mask, past_key_values=state)
    steady = StaticCache(state, 8)
    steady.load(state)
    assert steady.first.tolist() == [0, 2, 2] and steady.num_tokens().flatten().tolist() == [4, 2, 2]
    path, layer = next((path, layer) for path, layer in state.layers.items() if isinstance(layer, SelfAttentionCache))
    for row, real in enumerate(state.real):
        kept = steady.layers[path].key[row, :, int(steady.first[row]) : 4]
        assert torch.equal(kept, layer.key[row, :, :4][:, real])


def seen(model: af.Model, name: str) -> dict[str, Tensor]:
    """Two rows of what a model that looks or listens is given, with the words before the first new one."""
    chance = torch.Generator().manual_seed(4)
    if name == "whisper-toy":
        return {"input_features": torch.randn(2, 16, 64, generator=chance)}
    tall, wide, channels = (16, 64, 1) if name == "line-reader-tiny" else (32, 32, 3)
    pixels = torch.randn(2, channels, tall, wide, generator=chance)
    if name == "metalm-tiny":
        ids = torch.tensor([[5, *[255] * 17, 6], [7, *[255] * 17, 8]])  # 255 keeps a place for the image
        return {"pixel_values": pixels, "input_ids": ids}
    words = {"input_ids": torch.randint(5, 60, (2, 3), generator=chance)} if name == "git-tiny" else {}
    return {"pixel_values": pixels, **words}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        *("git-tiny", "metalm-tiny", "vision-encoder-decoder-tiny", "cnn-transformer-tiny"),
        *("line-reader-tiny", "whisper-toy"),
    ],
)
def test_a_step_after_a_picture_needs_the_state_alone(
    name: str, beams: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at or heard is in the state: the step of fixed size is given one word a row, sees nothing before
    it again, and says what the loop says."""
    model = make(name, device)
    start = {"decoder_input_ids": torch.full((2, 1), 4)} if "decoder_input_ids" in model.names else {}
    given = {**seen(model, name), **start}
    moved = {key: x.to(device, model.dtype if x.is_floating_point() else x.dtype) for key, x in given.items()}
    asked = {"eos_token_id": None, "pad_token_id": 3, "suppress_tokens": [255] if name == "metalm-tiny" else None}
    grown, fixed, steps = both(model, monkeypatch, max_new_tokens=9, num_beams=beams, **asked, **moved)
    assert fixed.tolist() == grown.tolist() and steps > 3
    if name in ("git-tiny", "metalm-tiny"):
        assert fixed[0].tolist() != fixed[1].tolist(), "they saw different images"
