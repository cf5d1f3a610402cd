"""Writing and translating: against `model.generate` and `af.look`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.explorer.loaded_model import LoadedModel
from tests.explorer.models import TEXT, image_file, unpack, view

Models = dict[str, LoadedModel]


def ids_of(opened: LoadedModel, text: str = TEXT) -> torch.Tensor:
    assert opened.tokenizer is not None
    return torch.tensor([opened.tokenizer.encode(text)])


def test_writing_is_generate_and_the_cache_grows_by_a_token(opened: Models) -> None:
    one = opened["decoder"]
    ids = ids_of(one)
    wanted = one.model.generate(ids, max_new_tokens=8, **one.end_options())[0, ids.shape[1] :].tolist()
    got = view(one, "generation", text=TEXT, new_tokens=8)
    assert [step["id"] for step in got["steps"]] == wanted
    sizes = [step["cache"] for step in got["steps"]]
    each = 2 * 2 * 64 * 4  # key and value, two layers, 64 wide, 4 bytes
    assert [size["bytes"] for size in sizes] == [each * (ids.shape[1] + n) for n in range(len(sizes))]
    with torch.no_grad():
        chances = one.model(input_ids=ids).logits[0, -1].softmax(-1)
    assert got["steps"][0]["model"] == pytest.approx(chances[wanted[0]].item(), abs=1e-5)


def test_draws_repeat_by_their_seed(opened: Models) -> None:
    asked = {"text": TEXT, "new_tokens": 8, "sample": True, "temperature": 2.0}
    first, again, other = (view(opened["decoder"], "generation", **asked, seed=seed) for seed in (1, 1, 2))
    assert first == again and first != other


@pytest.mark.parametrize("name", ["decoder", "pair", "recurrent"])
def test_the_tree_ends_where_beam_search_does(opened: Models, name: str) -> None:
    one = opened[name]
    ids = ids_of(one)
    out = one.model.generate(ids, num_beams=3, max_new_tokens=6, return_dict_in_generate=True, **one.end_options())
    got = view(one, "beams", text=TEXT, beams=3, new_tokens=6)
    prompt = ids.shape[1] if name == "decoder" else 1
    assert got["ids"] == out.sequences[0, prompt:].tolist()
    assert got["score"] == pytest.approx(out.sequences_scores[0].item(), abs=1e-5)
    for level in got["levels"]:
        scores = [candidate["score"] for candidate in level]
        assert scores == sorted(scores, reverse=True)
        on = [candidate["beam"] for candidate in level if candidate["beam"] is not None]
        assert sorted(on) == (list(range(3)) if level is not got["levels"][-1] else [])


@pytest.mark.parametrize("name", ["pair", "recurrent", "relative"])
def test_alignment_of_what_the_model_says_by_itself(opened: Models, name: str) -> None:
    """Recurrent attention and transformers in the same view: equal to the alignment of decoding step by step."""
    one = opened[name]
    ids = ids_of(one)
    out = one.model.generate(ids, max_new_tokens=20, alignment=True, **one.end_options())
    got = view(one, "head", text=TEXT, stage="decoder", part="cross", layer=len(one.stages[-1].stack.blocks) - 1)  # type: ignore[union-attr]
    weights = unpack(got["cells"])
    torch.testing.assert_close(weights, out.alignment[0, : len(weights)].double(), atol=1e-4, rtol=0)
    assert len(got["queries"]) == out.sequences.shape[1] - 1 and len(got["keys"]) == ids.shape[1]


def test_a_given_target_is_read_and_named_by_what_is_said(opened: Models) -> None:
    one = opened["pair"]
    assert one.tokenizer is not None
    got = view(one, "head", text=TEXT, target="a man", stage="decoder", part="cross")
    target = one.tokenizer.encode("a man", special=False)
    assert got["queries"] == one.tokenizer.tokens([*target, one.end or 0])
    batch = {"input_ids": ids_of(one), "decoder_input_ids": torch.tensor([[one.model.decoder_start, *target]])}
    with af.look(one.model, "decoder.blocks.0.cross.weights") as seen:
        one.model(**batch)
    wanted = seen["decoder.blocks.0.cross.weights"][0].mean(0).double()
    torch.testing.assert_close(unpack(got["cells"]), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("asked", [{"text": TEXT}, {"image": image_file()}], ids=["pair", "captioner"])
def test_the_copy_on_another_device_generates(
    asked: dict[str, str], opened: Models, folder: Path, request: pytest.FixtureRequest
) -> None:
    """A second copy of the weights stands for the one on a GPU: it generates, and the model computes the rest."""
    name = request.node.callspec.id
    one, copy = opened[name], LoadedModel.load(folder / name).model
    other = LoadedModel(one.model, one.tokenizer, None, generator=copy)
    used: list[object] = []
    hooks = [copy.register_forward_pre_hook(lambda *given: used.append(given))]
    hooks += [stage.register_forward_pre_hook(lambda *given: used.append(given)) for stage in copy.stages.values()]
    got, same = (view(loaded, "tokens", new_tokens=4, **asked) for loaded in (other, one))
    for hook in hooks:
        hook.remove()
    assert got.pop("seconds") and same.pop("seconds")
    assert used and got == same and one.generator is one.model


def test_the_command_chooses_the_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    monkeypatch.setattr("anyformer.explorer.server.serve", lambda models, port, **more: chosen.append(more["device"]))
    for given in ([], ["--device", "cpu"]):
        with pytest.raises(SystemExit):
            main(["explore", "--model", str(folder / "pair"), "--no-open", *given])
    assert chosen == ["auto", "cpu"]
