"""Every number of the text views against the model itself, PyTorch or a formula."""

from __future__ import annotations

import json
import math

import pytest
import torch

import anyformer as af
from anyformer.core.attend import KERNELS
from anyformer.errors import Error
from anyformer.explorer import downsample
from anyformer.explorer import trace as capture
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views.flow import largest_flow
from tests.explorer.models import TEXT, unpack, view

Models = dict[str, LoadedModel]


def ids_of(opened: LoadedModel, text: str = TEXT) -> torch.Tensor:
    assert opened.tokenizer is not None
    return torch.tensor([opened.tokenizer.encode(text)])


def test_tokens_are_the_tokenizers_and_stand_for_their_characters(opened: Models) -> None:
    for name, stage in (("decoder", "decoder"), ("encoder", "encoder")):
        words = view(opened[name], "tokens", text=TEXT)["words"][stage]
        assert [word["id"] for word in words] == ids_of(opened[name])[0].tolist()
        real = [word for word in words if word["end"] > word["start"]]
        assert "".join(TEXT[word["start"] : word["end"]] for word in real).replace(" ", "") == TEXT.replace(" ", "")
        for word in real:
            assert bytes.fromhex(word["bytes"]).decode() == TEXT[word["start"] : word["end"]]


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_a_head_is_what_looking_at_the_whole_pass_shows(opened: Models, name: str) -> None:
    """One block run again gives what the whole model gave."""
    one = opened[name]
    with af.look(one.model, "*.self.weights") as seen:
        one.model(input_ids=ids_of(one))
    for layer in (0, 1):
        weights = seen[f"{name}.blocks.{layer}.self.weights"][0]
        for head in (0, 3):
            got = view(one, "head", text=TEXT, stage=name, layer=layer, head=head)
            torch.testing.assert_close(unpack(got["cells"]), weights[head].double(), atol=2e-5, rtol=0)
        mean = view(one, "head", text=TEXT, stage=name, layer=layer)
        torch.testing.assert_close(unpack(mean["cells"]), weights.mean(0).double(), atol=2e-5, rtol=0)
        row = view(one, "row", text=TEXT, stage=name, layer=layer, head=1, position=2)
        assert row["values"] == pytest.approx(weights[1, 2].tolist(), abs=1e-6)


def test_entropy_and_distance_are_their_formulas() -> None:
    even = torch.full((1, 4, 4), 0.25)
    assert downsample.entropy(even).item() == pytest.approx(2.0)  # bits of four equal probabilities
    assert downsample.entropy(torch.eye(4)[None]).item() == pytest.approx(0.0)
    back_one = torch.zeros(1, 3, 3)
    back_one[0, 0, 0] = back_one[0, 1, 0] = back_one[0, 2, 1] = 1.0
    assert downsample.distance(back_one).item() == pytest.approx(2 / 3)


def test_the_grid_of_heads(opened: Models) -> None:
    one = opened["decoder"]
    got = view(one, "heads", text=TEXT, stage="decoder")
    with af.look(one.model, "*.self.weights") as seen:
        one.model(input_ids=ids_of(one))
    assert [row["layer"] for row in got["rows"]] == [0, 1] == got["layers"]
    for row in got["rows"]:
        weights = seen[f"decoder.blocks.{row['layer']}.self.weights"][0].double()
        for head in range(4):
            rows = [-(w[w > 0] * w[w > 0].log2()).sum().item() for w in weights[head]]
            assert row["entropy"][head] == pytest.approx(sum(rows) / len(rows), abs=1e-4)
    assert [row["layer"] for row in view(one, "heads", text=TEXT, layers=[1])["rows"]] == [1]


def test_silencing_is_zeros_in_the_output_projection(opened: Models, folder: object) -> None:
    one = opened["decoder"]
    mute = {"stage": "decoder", "layer": 0, "part": "self", "head": 2}
    before = view(one, "next", text=TEXT)
    after = view(one, "next", text=TEXT, ablate=[mute])
    model = af.load(f"{folder}/decoder")
    out = model.stages["decoder"].stack.blocks[0].sublayers["self"].part.out  # type: ignore[union-attr]
    width = out.weight.shape[1] // 4
    out.weight.data[:, 2 * width : 3 * width] = 0.0
    with torch.no_grad():
        chances = model(input_ids=ids_of(one)).logits[0, -1].softmax(-1)
    assert [word["model"] for word in after["words"]] == pytest.approx(
        [chances[word["id"]].item() for word in after["words"]], abs=1e-6
    )
    assert [word["model"] for word in before["words"]] != pytest.approx([word["model"] for word in after["words"]])
    assert view(one, "next", text=TEXT) == before  # and nothing of it stays


def test_one_head_step_by_step(opened: Models) -> None:
    """The numbers shown lead from one to the next."""
    for name, stage in (("decoder", "decoder"), ("relative", "encoder"), ("pair", "encoder")):
        got = view(opened[name], "steps", text="the animal was", stage=stage, layer=1, head=1, position=2)
        query, keys = torch.tensor(got["query"]), torch.tensor(got["keys"])
        assert got["scores"] == pytest.approx((keys @ query).tolist(), rel=1e-3, abs=1e-3)
        scores = torch.tensor(got["scores"]) * got["scale"]
        scores = scores if got["bias"] is None else scores + torch.tensor(got["bias"])
        weights = scores.masked_fill(~torch.tensor(got["allowed"]), -math.inf).softmax(-1)
        assert got["weights"] == pytest.approx(weights.tolist(), abs=1e-4)
        assert got["result"] == pytest.approx((weights @ torch.tensor(got["values"])).tolist(), rel=1e-3, abs=1e-3)
        read, own = torch.tensor(got["read"]), got["own"]
        part = opened[name].model.stages[stage].stack.blocks[1].sublayers["self"].part  # type: ignore[union-attr]
        made = {role: part.qkv(read[None], role=role)[0].view(4, -1)[1].tolist() for role in ("key", "value")}
        assert own["value"] == pytest.approx(made["value"], rel=1e-3, abs=1e-3)
        assert own["key"] == pytest.approx(made["key"], rel=1e-3, abs=1e-3)
        result = torch.tensor(got["result"])
        adds = part.out.weight[:, 16:32] @ result  # the second head's columns
        assert got["adds"] == pytest.approx(adds.tolist(), rel=1e-3, abs=1e-3)
        norm = got["norm"]
        if norm["kind"] == "LayerNorm":
            assert norm["after"]["mean"] == pytest.approx(0, abs=1e-4) and norm["after"]["std"] == pytest.approx(
                1, abs=1e-3
            )
    assert view(opened["relative"], "steps", text="the animal", stage="encoder")["bias"] is not None
    causal = view(opened["decoder"], "steps", text="the animal was", position=0)
    assert causal["allowed"] == [True] + [False] * (len(causal["allowed"]) - 1)


def test_rollout_is_the_product_of_half_attention_half_residual(opened: Models) -> None:
    one = opened["encoder"]
    with af.look(one.model, "*.self.weights") as seen:
        one.model(input_ids=ids_of(one))
    total = product = torch.eye(ids_of(one).shape[1], dtype=torch.float64)
    for layer in (0, 1):
        mean = seen[f"encoder.blocks.{layer}.self.weights"][0].double().mean(0)
        total = (0.5 * mean + 0.5 * torch.eye(len(mean), dtype=torch.float64)) @ total
        product = mean @ product
    got = view(one, "rollout", text=TEXT)
    torch.testing.assert_close(unpack(got["cells"]), total, atol=3e-5, rtol=0)
    torch.testing.assert_close(unpack(view(one, "rollout", text=TEXT, raw=True)["cells"]), product, atol=3e-5, rtol=0)


def test_flow_is_bounded_by_the_narrowest_pipe() -> None:
    """By hand: token 1 sees token 0 by 0.4 in both layers; pipes are half of that, and half for staying in place."""
    pytest.importorskip("scipy")
    layer = torch.tensor([[1.0, 0.0], [0.4, 0.6]])
    # Down to token 0: straight (0.2 of layer 2, then token 0's own pipe of 1) and late (0.8, then 0.2) -> 0.4.
    # Down to token 1: it stays in place, 0.8 and 0.8 -> 0.8.
    assert largest_flow([layer, layer], 1, Deadline(10)) == pytest.approx([0.4, 0.8], abs=1e-5)
    assert largest_flow([layer, layer], 0, Deadline(10)) == pytest.approx([1.0, 0.0], abs=1e-5)


def test_next_words_under_temperature_top_k_and_top_p(opened: Models) -> None:
    one = opened["decoder"]
    with torch.no_grad():
        logits = one.model(input_ids=ids_of(one)).logits[0, 2]
    got = view(one, "next", text=TEXT, position=2, temperature=0.7, top_k=5)
    best = (logits / 0.7).topk(5)
    wanted = dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))
    assert got["left"] == 5
    for word in got["words"]:
        assert word["probability"] == pytest.approx(wanted.get(word["id"], 0.0), abs=1e-5)
        assert word["model"] == pytest.approx(logits.softmax(-1)[word["id"]].item(), abs=1e-6)
    nucleus = view(one, "next", text=TEXT, position=2, top_p=0.3)
    ordered = logits.softmax(-1).sort(descending=True).values
    assert nucleus["left"] == int((ordered.cumsum(0) < 0.3).sum()) + 1


def test_the_lens_ends_in_what_the_model_says(opened: Models) -> None:
    one = opened["decoder"]
    with torch.no_grad():
        out = one.model(input_ids=ids_of(one), output_hidden_states=True)
    got = view(one, "logit_lens", text=TEXT)
    assert len(got["rows"]) == 3
    last = out.logits[0, -1].softmax(-1)
    assert got["rows"][-1]["probabilities"][0] == pytest.approx(last.max().item(), abs=1e-5)
    assert got["rows"][-1]["rank"] == 0
    model = one.model
    norm = model.stages["decoder"].stack.final_norm  # type: ignore[union-attr]
    words = model.stages["decoder"].inputs.words.weight  # type: ignore[union-attr]
    early = (norm(out.hidden_states[1][0, -1]) @ words.T).softmax(-1)  # type: ignore[operator]
    assert got["rows"][1]["probabilities"] == pytest.approx(early.topk(5).values.tolist(), abs=1e-5)


def test_embeddings_and_positions(opened: Models) -> None:
    one = opened["decoder"]
    got = view(one, "embeddings", text=TEXT)
    inputs = one.model.stages["decoder"].inputs
    ids = ids_of(one)[0]
    with torch.no_grad():
        x = inputs.words.weight[ids] + inputs.positions.weight[: len(ids)]  # type: ignore[union-attr, index]
    torch.testing.assert_close(unpack(got["vectors"]), x[:, :96].double(), atol=1e-3, rtol=0)
    table = inputs.positions.weight[:64].detach()  # type: ignore[union-attr, index]
    near = torch.nn.functional.cosine_similarity(table[:-1], table[1:]).mean().item()
    assert got["distance"][0] == pytest.approx(1.0, abs=1e-5) and got["distance"][1] == pytest.approx(near, abs=1e-4)
    assert got["toy"][3] == pytest.approx([math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)], abs=1e-5)
    assert len(view(opened["relative"], "embeddings", text=TEXT)["bias"]) == 4  # a curve a head


def test_sizes_add_up(opened: Models) -> None:
    one = opened["decoder"]
    got = view(one, "stats", text=TEXT)
    assert sum(row["parameters"] for row in got["parameters"]) == sum(p.numel() for p in one.model.parameters())
    layer = got["layers"][0]
    assert layer["shape"] == [1, ids_of(one).shape[1], 64] and layer["kernels"]["self"] in KERNELS
    assert got["cache"] == 2 * 2 * 64 * 4  # key and value, two layers, 64 wide, 4 bytes


def test_work_and_memory_of_a_layer_by_hand(opened: Models) -> None:
    """A decoder's layer that looks at 8 source tokens from 3 places: 64 wide, 4 heads, 128 hidden."""
    got = view(opened["pair"], "stats", text=TEXT, target="a man")
    layer = next(one for one in got["layers"] if one["stage"] == "decoder")
    said, read, width, hidden = layer["shape"][1], ids_of(opened["pair"]).shape[1], 64, 128
    between = 2 * said * (said + read) * 2 * width  # scores, and values, of both attentions
    maps = 2 * width * width * (4 * said + 2 * said + 2 * read) + 2 * said * 2 * width * hidden
    assert layer["flops"] == between + maps
    assert layer["attention_bytes"] == 4 * said * (said + read) * 4 and layer["activations"] == said * width * 4


def test_long_texts_come_in_tiles() -> None:
    """Of a matrix of 600 x 600 a tile is shipped, and a small whole; of a row the strongest."""
    torch.manual_seed(0)
    one = LoadedModel(af.build("llama-tiny").eval(), None)
    ids = torch.randint(3, 60, (1, 600))
    text = " ".join(str(number) for number in ids[0].tolist())
    with torch.no_grad(), af.look(one.model, "decoder.blocks.1.self.weights") as seen:
        one.model(input_ids=ids)
    weights = seen["decoder.blocks.1.self.weights"][0, 0].double()
    got = view(one, "head", text=text, layer=1, head=0, top=100, left=550)
    assert (got["top"], got["left"], got["of"]) == (100, 472, [600, 600])
    low = view(one, "head", text=text, layer=1, head=0, top=550, left=40)
    torch.testing.assert_close(unpack(low["cells"]), weights[472:600, 40:168], atol=2e-5, rtol=0)
    small = unpack(low["overview"])
    assert small.shape == (128, 128) and small.max().item() == pytest.approx(weights.max().item(), abs=2e-5)
    assert unpack(view(one, "rollout", text=text, top=400)["overview"]).shape == (128, 128)
    mask = view(one, "mask", text=text, layer=1, head=0, top=300, left=200)
    assert torch.equal(unpack(mask["cells"]) == 0, torch.ones(600, 600).tril()[300:428, 200:328].bool())
    row = view(one, "row", text=text, layer=1, head=0, position=599)
    assert len(row["places"]) == 512 and sum(row["values"]) + row["rest"] == pytest.approx(1.0, abs=1e-3)
    for name in ("heads", "head", "row", "next", "logit_lens", "steps", "stats", "rollout", "mask", "find_heads"):
        assert len(json.dumps(view(one, name, text=text))) < 150_000, name
    with pytest.raises(Error, match="the maximum is"):
        view(one, "tokens", text=" ".join(["5"] * 3000))


def test_what_is_lost_without_a_head(opened: Models) -> None:
    """The divergence between two runs, by PyTorch's own function."""
    one = opened["decoder"]
    got = view(one, "ablation", text=TEXT, stage="decoder", layer=1)
    mute = {"stage": "decoder", "layer": 1, "part": "self", "head": 3}
    length = ids_of(one).shape[1]
    said, after = (
        torch.tensor([_logprobs(one, place, silence) for place in range(length)]) for silence in ([], [mute])
    )
    wanted = torch.nn.functional.kl_div(after, said, log_target=True, reduction="none").sum(-1).mean() / math.log(2)
    assert got["bits"] and got["changes"][3] == pytest.approx(wanted.item(), rel=1e-3, abs=1e-6)
    assert len(got["changes"]) == 4 and min(got["changes"]) > 0


def _logprobs(one: LoadedModel, place: int, silence: list[dict[str, object]]) -> list[float]:
    """Of every word at a place, from the pass that the views share."""
    _, trace = one.trace(ViewRequest.from_json({"text": TEXT, "ablate": silence}), Deadline(60))
    head = one.language
    assert head is not None
    found: list[float] = head.score(trace.run.tokens["decoder"].x[0, place]).log_softmax(-1).tolist()
    return found


@pytest.mark.parametrize("name", ["decoder", "encoder", "pair", "relative"])
@pytest.mark.parametrize("left", [False, True])
def test_the_mask_is_the_one_that_the_weights_obey(opened: Models, name: str, left: bool) -> None:
    """Where the view says forbidden, the model's weight is exactly zero: the future and the padding."""
    one = opened[name]
    ids = ids_of(one)
    padded = torch.cat([ids, ids.new_zeros(1, 3)], dim=1)
    real = torch.cat([torch.ones_like(ids), ids.new_zeros(1, 3)], dim=1)
    if left:
        padded, real = padded.roll(3, 1), real.roll(3, 1)
    batch = {"input_ids": padded, "attention_mask": real}
    if one.encoder_decoder:
        batch["decoder_input_ids"] = torch.zeros(1, 1, dtype=torch.long)
    stage = "decoder" if name == "decoder" else "encoder"
    with af.look(one.model, f"{stage}.blocks.1.self.weights") as seen, torch.no_grad():
        one.model(**batch)
    weights = seen[f"{stage}.blocks.1.self.weights"][0, 1].double()
    got = view(one, "mask", text=TEXT, stage=stage, layer=1, head=1, padding=3, padding_left=left)
    forbidden = unpack(got["cells"]).round().bool()
    rows = real[0].bool()
    assert (weights[forbidden] == 0).all()
    torch.testing.assert_close(unpack(got["weights"])[rows], weights[rows], atol=2e-5, rtol=0)
    assert got["moved"] < 1e-5
    causal = torch.ones(len(rows), len(rows)).triu(1).bool() if name == "decoder" else torch.zeros(len(rows), len(rows))
    assert torch.equal(forbidden, causal.bool() | ~rows)


def test_a_window_is_drawn_as_one() -> None:
    """A token of Gemma's local layers sees the window's tokens before it, and no others."""
    torch.manual_seed(0)
    one = LoadedModel(af.build("gemma3-tiny", window=4).eval(), None)
    got = view(one, "mask", text="3 4 5 6 7 8 9 3 4 5", stage="decoder")
    assert any("window: 3 tokens before" in part["label"] for part in got["parts"])
    seen = torch.ones(10, 10).tril() - torch.ones(10, 10).tril(-4)
    assert torch.equal(unpack(got["cells"]).round() == 0, seen.bool())


def test_a_few_queries_at_a_time_give_the_same_weights(opened: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal, padded, biased and recurrent alike; blocks of two queries."""
    monkeypatch.setattr(capture, "ROWS", 2)
    for name in ("decoder", "encoder", "relative", "recurrent"):
        _, trace = opened[name].trace(ViewRequest(text=TEXT, padding=2 if name != "recurrent" else 0), Deadline(60))
        for site in trace.sites():
            whole = trace.weights(site)
            real = len(ids_of(opened[name])[0]) if site.stage != "decoder" or name == "decoder" else len(whole[0])
            mean = trace.mean_weights(site)[:real]  # padded queries mean nothing
            torch.testing.assert_close(mean, whole.mean(0)[:real], atol=1e-5, rtol=0)
            torch.testing.assert_close(trace.row_weights(site, 1), whole[:, 1], atol=1e-5, rtol=0)


def test_heads_are_sought_over_all_layers(opened: Models) -> None:
    one = opened["encoder"]
    with af.look(one.model, "*.self.weights") as seen, torch.no_grad():
        one.model(input_ids=ids_of(one))
    wanted = {
        (layer, head): seen[f"encoder.blocks.{layer}.self.weights"][0, head, 3, 1].item()
        for layer in (0, 1)
        for head in range(4)
    }
    got = view(one, "find_heads", text=TEXT, position=3, to=1)
    assert [(found["layer"], found["head"]) for found in got["heads"]] == sorted(wanted, key=lambda at: -wanted[at])
    assert got["heads"][0]["weight"] == pytest.approx(max(wanted.values()), abs=1e-6)
    with pytest.raises(Error, match="expected 0"):
        view(one, "find_heads", text=TEXT, position=0, to=99)


def test_padding_where_there_is_none_to_take(opened: Models) -> None:
    with pytest.raises(Error, match="padding must be"):
        view(opened["decoder"], "mask", text=TEXT, padding=1000)
