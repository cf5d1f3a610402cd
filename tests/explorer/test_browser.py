"""The page in a real browser: numbers that are drawn are Python's, and a silenced head changes what is seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tests.explorer.browser import Models, Page, sent
from tests.explorer.models import TEXT, unpack, view


def test_tokens(page: Page, opened: Models) -> None:
    page.open("decoder", "tokens")
    drawn = [int(text) for text in page.texts(".chip small")]
    assert opened["decoder"].tokenizer is not None
    assert drawn == opened["decoder"].tokenizer.encode(TEXT)


def test_all_heads_and_silencing_one(page: Page, opened: Models) -> None:
    page.open("decoder", "heads")
    rows = view(opened["decoder"], "heads", text=TEXT, stage="decoder")["rows"]
    drawn = {cell.split("H ")[0][:3]: float(re.findall(r"H ([\d.]+)", cell)[0]) for cell in page.texts(".cell")}
    for row in rows:
        for head, bits in enumerate(row["entropy"]):
            assert drawn[f"{row['layer']}.{head}"] == pytest.approx(bits, abs=0.006)
    page.tab.locator("#measure-0").click()
    page.tab.wait_for_selector('[data-head="1.3"] .effect')
    lost = [view(opened["decoder"], "ablation", text=TEXT, layer=layer)["changes"] for layer in (0, 1)]
    assert [float(text[2:]) for text in page.texts(".effect")] == pytest.approx(
        [x for row in lost for x in row], abs=6e-5
    )
    page.act(lambda: page.tab.locator('[data-head="0.1"] .ablate').click())
    assert "ablated: decoder self 0.1" in page.text("#ablated")
    mute = [{"stage": "decoder", "layer": 0, "part": "self", "head": 1}]
    after = view(opened["decoder"], "heads", text=TEXT, stage="decoder", ablate=mute)["rows"]
    drawn_after = [float(text[2:]) for text in page.texts(".entropy")]
    assert drawn_after == pytest.approx([bits for row in after for bits in row["entropy"]], abs=0.006)
    assert after[1]["entropy"] != pytest.approx(rows[1]["entropy"], abs=0.006)  # the layer above sees another input
    assert "ablate=decoder.0.self.1" in page.tab.url


def test_one_head_by_keyboard(page: Page, opened: Models) -> None:
    page.open("decoder", "head", layer=1, head=2)
    weights = unpack(view(opened["decoder"], "head", text=TEXT, layer=1, head=2)["cells"])
    page.tab.locator("svg .pick").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.tab.keyboard.press(key)
    assert page.number("#readout-0") == pytest.approx(float(weights[2, 1]), abs=6e-5)
    page.act(lambda: page.tab.select_option("#mode-0", "lines"))
    strong = int((weights >= 0.02).sum())
    assert page.tab.locator("svg line").count() == strong
    page.act(lambda: page.tab.select_option("#mode-0", "text"))
    drawn = [float(value) for value in page.tab.locator(".chip").evaluate_all("all => all.map(x => x.dataset.weight)")]
    assert drawn == pytest.approx(weights[-1].tolist(), abs=1e-5)


def test_step_by_step_with_a_temperature(page: Page, opened: Models) -> None:
    """From the query to what is added up: what is drawn under another temperature is worked out here by PyTorch."""
    page.open("decoder", "steps", layer=1, head=1, pos=3)
    got = view(opened["decoder"], "steps", text=TEXT, layer=1, head=1, position=3)
    drawn = [float(text) for text in page.texts('[data-figure^="4-scores"] td:last-child')]
    assert drawn == pytest.approx(got["weights"], abs=6e-5)
    page.tab.locator("#softmax-temperature-0").fill("2")
    scores = torch.tensor(got["scores"]) * got["scale"] / 2
    softer = scores.masked_fill(~torch.tensor(got["allowed"]), float("-inf")).softmax(-1)
    drawn = [float(text) for text in page.texts('[data-figure^="4-scores"] td:last-child')]
    assert drawn == pytest.approx(softer.tolist(), abs=2e-4)
    assert [float(text) for text in page.texts('[data-figure="5-attention-weights"] .value')] == pytest.approx(
        softer.tolist(), abs=6e-4
    )
    said = softer @ torch.tensor(got["values"])
    page.tab.locator('[data-figure^="7-sum"] .pick').focus()
    page.tab.keyboard.press("ArrowRight")
    assert page.number('[data-figure^="7-sum"] output') == pytest.approx(float(said[1]), abs=1e-3)
    norm = got["norm"]["before"]
    assert f"before: mean {norm['mean']:.3f}, std {norm['std']:.3f}" in page.text(".norm")


def test_masks_and_padding(page: Page, opened: Models) -> None:
    """The mask is the model's own: what it forbids has weight zero, and padding moves nothing."""
    page.open("decoder", "mask", layer=1, head=2)
    page.tab.locator("#pad-0").fill("3")
    page.tab.wait_for_selector(".moved")
    got = view(opened["decoder"], "mask", text=TEXT, layer=1, head=2, padding=3)
    assert page.texts(".parts li") == [
        f"{part['label']}: {part['masked']} of {got['of'][0] ** 2} pairs" for part in got["parts"]
    ]
    page.tab.locator('[data-figure^="mask-blue"] .pick').focus()
    page.tab.keyboard.press("ArrowRight")
    assert page.text(".verdict").endswith("masked, causal: no attention to later tokens")
    page.tab.locator('[data-figure^="attention-weights"] .pick').focus()
    page.tab.keyboard.press("ArrowDown")
    weights = unpack(got["weights"])
    assert page.number('[data-figure^="attention-weights"] output') == pytest.approx(float(weights[1, 0]), abs=6e-5)
    assert "pad=3" in page.tab.url


def test_heads_are_found_by_what_looks_at_what(page: Page, opened: Models) -> None:
    """A click on a cell asks for the heads in which the row's token looks most at the column's."""
    page.open("encoder", "head", layer=0, head=0)
    page.tab.locator("svg .pick").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.tab.keyboard.press(key)
    page.act(lambda: page.tab.keyboard.press("Enter"))
    heads = [view(opened["encoder"], "head", text=TEXT, layer=n // 4, head=n % 4) for n in range(8)]
    wanted = sorted((float(unpack(one["cells"])[2, 1]) for one in heads), reverse=True)
    assert [float(text) for text in page.texts(".found-heads small")] == pytest.approx(wanted, abs=6e-4)


def test_rollout_and_flow(page: Page, opened: Models) -> None:
    pytest.importorskip("scipy")
    page.open("encoder", "flow", pos=1)
    rolled = view(opened["encoder"], "rollout", text=TEXT, position=1)["row"]["values"]
    drawn = [float(text) for text in page.texts('[data-figure="rollout-of-token-1"] .value')]
    assert drawn == pytest.approx(rolled[:40], abs=6e-4)
    flowed = view(opened["encoder"], "flow", text=TEXT, position=1)["flow"]
    assert [float(text) for text in page.texts('[data-figure^="attention-flow-to"] .value')] == pytest.approx(
        flowed, abs=6e-4
    )


def test_next_words_move_with_the_temperature(page: Page, opened: Models) -> None:
    page.open("decoder", "next", pos=2)
    page.tab.locator("#k-0").fill("3")
    page.tab.wait_for_selector('figcaption b:has-text("3 of")')
    wanted = [word["probability"] for word in view(opened["decoder"], "next", text=TEXT, position=2, top_k=3)["words"]]
    drawn = [float(text) for text in page.texts('[data-figure^="after-token"] .value')]
    assert drawn == pytest.approx(wanted, abs=6e-5)
    lens = view(opened["decoder"], "logit_lens", text=TEXT, position=2)["rows"]
    ranks = [int(text) for text in page.texts('[data-figure^="logit-lens"] td:nth-last-child(2)')]
    assert ranks == [row["rank"] + 1 for row in lens]


def test_embeddings(page: Page, opened: Models) -> None:
    page.open("relative", "embeddings")
    assert "Position encoding of this model" in page.text("h3")
    got = view(opened["relative"], "embeddings", text=TEXT)
    toy = [float(text) for text in page.texts('[data-figure^="sinusoidal-encoding-width-4"] tbody tr:nth-child(4) td')]
    assert toy[1:] == pytest.approx(got["toy"][3], abs=6e-4)
    for figure, values in (("cosine-similarity", got["similarity"]), ("sinusoidal-encoding-full", got["sinusoidal"])):
        page.tab.locator(f'[data-figure^="{figure}"] .pick').focus()
        page.tab.keyboard.press("ArrowDown")
        drawn = page.number(f'[data-figure^="{figure}"] output')
        assert drawn == pytest.approx(float(unpack(values)[1, 0]), abs=1e-4)


def test_alignment_beside_a_recurrent_model(page: Page, opened: Models) -> None:
    page.open("pair,recurrent", "alignment", target="a man")
    for n, name in enumerate(("pair", "recurrent")):
        got = view(opened[name], "head", text=TEXT, target="a man", stage="decoder", part="cross")
        weights = unpack(got["cells"])
        panel = page.tab.locator(".panel").nth(n)
        panel.locator("svg .pick").first.focus()
        page.tab.keyboard.press("ArrowDown")
        assert page.number(f"#readout-{n}") == pytest.approx(float(weights[1, 0]), abs=6e-5)


def test_cross_attention_is_painted_on_the_source(page: Page, opened: Models) -> None:
    page.open("pair", "head", site="decoder/cross", target="a man", mode="text")
    page.act(lambda: page.tab.locator(".queries .chip").nth(1).click())
    got = view(opened["pair"], "head", text=TEXT, target="a man", stage="decoder", part="cross")
    drawn = page.tab.locator("figure .chip").evaluate_all("all => all.map((one) => Number(one.dataset.weight))")
    assert drawn == pytest.approx(unpack(got["cells"])[1].tolist(), abs=1e-4)


def test_writing_and_the_tree(page: Page, opened: Models) -> None:
    page.open("decoder", "generation", n=5, beams=3)
    got = view(opened["decoder"], "generation", text=TEXT, new_tokens=5)
    page.tab.locator("#step-0").fill("2")
    drawn = [float(text) for text in page.texts('[data-figure="candidates-at-this-step"] .value')]
    assert drawn == pytest.approx([one["probability"] for one in got["steps"][2]["best"]], abs=6e-5)
    assert page.text(".cache").startswith(f"{got['steps'][2]['cache']['tokens']} tokens")
    tree = view(opened["decoder"], "beams", text=TEXT, new_tokens=5, beams=3)
    scores = [float(re.findall(r"-\d+\.\d\d", text)[-1]) for text in page.texts("svg .candidate")]
    assert scores == pytest.approx([one["score"] for level in tree["levels"] for one in level], abs=6e-3)


def test_numbers(page: Page, opened: Models) -> None:
    page.open("pair", "stats")
    total = sum(one.numel() for one in opened["pair"].model.parameters())
    assert page.text(".total").startswith(f"{total:,} parameters")
    parts = [float(text.split()[0]) for text in page.texts('[data-figure="parameters-per-module"] .value')]
    assert sum(parts) == total


class Case(NamedTuple):
    """A view with something silenced: where its number is drawn, and how Python comes by it."""

    model: str
    state: dict[str, Any]  # of the page
    mute: str
    drawn: str  # a selector
    view: str
    asked: dict[str, Any]
    said: Callable[[dict[str, Any]], float]
    matrix: str = ""  # where it is read one cell below the corner


def cell(got: dict[str, Any], name: str = "cells") -> float:
    return float(unpack(got[name])[1, 0])


FIRST, HEAD = "decoder.0.self.0", {"layer": 1, "head": 2}
CROSS = {"stage": "decoder", "part": "cross", "layer": 1, "target": "a man"}
STEP = '[data-figure^="5-attention-weights"]'
UNDER = '[data-figure^="attention-weights"]'
CASES = {
    "head": Case("decoder", HEAD, FIRST, "#readout-0", "head", HEAD, cell, "svg"),
    "mask": Case("decoder", HEAD, FIRST, f"{UNDER} output", "mask", HEAD, lambda got: cell(got, "weights"), UNDER),
    "steps": Case("decoder", HEAD, FIRST, f"{STEP} .value", "steps", HEAD, lambda got: got["weights"][0]),
    "flow": Case("encoder", {}, "encoder.0.self.0", "#readout-0", "rollout", {}, cell, "svg"),
    "alignment": Case(
        "pair", {"layer": 1, "target": "a man"}, "decoder.0.cross.0", "#readout-0", "head", CROSS, cell, "svg"
    ),
    "next": Case(
        "decoder", {}, FIRST, '[data-figure^="after-token"] .value', "next", {},
        lambda got: got["words"][0]["probability"],
    ),
    "generation": Case(
        "decoder", {"n": 5}, FIRST, '[data-figure^="candidates"] .value', "generation", {"new_tokens": 5},
        lambda got: got["steps"][0]["best"][0]["probability"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_silenced_head_changes_what_is_drawn(page: Page, opened: Models, name: str) -> None:
    """Of every view that attention reaches; tokens, embeddings and sizes do not depend on heads."""
    case, drawn = CASES[name], []
    stage, layer, part, head = case.mute.split(".")
    mute = {"stage": stage, "layer": int(layer), "part": part, "head": int(head)}
    for silence in ([], [mute]):
        page.open(case.model, name, **case.state, ablate=case.mute if silence else "")
        if case.matrix:
            page.tab.locator(f"{case.matrix} .pick").first.focus()
            page.tab.keyboard.press("ArrowDown")
        drawn.append(page.number(case.drawn))
        wanted = case.said(view(opened[case.model], case.view, text=TEXT, ablate=silence, **case.asked))
        assert drawn[-1] == pytest.approx(wanted, abs=6e-4)
    assert drawn[0] != drawn[1]


def test_attention_over_an_image(page: Page, opened: Models) -> None:
    page.open("vit", "input", layer=1)
    asked = {"image": sent(page), "stage": "encoder", "layer": 1, "position": 0}
    mean = unpack(view(opened["vit"], "attention_map", **asked)["mean"])
    assert page.number(".max >> nth=0") == pytest.approx(float(mean.max()), abs=6e-5)
    page.act(lambda: page.tab.locator("svg g .pick").nth(5).click())
    other = unpack(view(opened["vit"], "attention_map", **{**asked, "position": 6})["mean"])
    assert page.number(".max >> nth=0") == pytest.approx(float(other.max()), abs=6e-5)
    page.open("vit", "input", layer=1, ablate="encoder.0.self.0,encoder.0.self.1")
    mutes = [{"stage": "encoder", "layer": 0, "part": "self", "head": head} for head in (0, 1)]
    silent = unpack(view(opened["vit"], "attention_map", **asked, ablate=mutes)["mean"])
    assert page.number(".max >> nth=0") == pytest.approx(float(silent.max()), abs=6e-5)


def test_hidden_patches(page: Page, opened: Models) -> None:
    page.open("mae", "reconstruction")
    got = view(opened["mae"], "reconstruction", image=sent(page))
    assert page.number(".loss") == pytest.approx(got["loss"], rel=1e-3)
    page.tab.locator("#share-0").fill("0.5")
    page.tab.wait_for_selector('.loss:has-text("8 of 16")')


def test_boxes(page: Page, opened: Models) -> None:
    page.open("detr", "boxes", threshold=0, pos=3)
    asked = {"image": sent(page)}
    scores = [float(text) for text in page.texts('[data-figure="all-detections"] td:nth-child(2)')]
    things = view(opened["detr"], "boxes", **asked, threshold=0.0)["detections"]
    assert scores == pytest.approx([one["score"] for one in things], abs=6e-4)
    mean = unpack(view(opened["detr"], "attention_map", **asked, stage="decoder", part="cross", position=3)["mean"])
    assert page.number(".max") == pytest.approx(float(mean.max()), abs=6e-5)


def test_words_on_an_image(page: Page, opened: Models) -> None:
    page.open("captioner", "words", target="3 5 7", pos=2)
    maps = unpack(view(opened["captioner"], "word_attention", image=sent(page), target="3 5 7")["maps"])
    assert page.number(".max") == pytest.approx(float(maps[2].max()), abs=6e-5)


def test_a_sound(page: Page) -> None:
    """The page makes its own tones; every class has its chance, and something of the spectrogram is looked at."""
    page.open("spectrogram", "input")
    chances = [float(text) for text in page.texts('[data-figure="predictions"] .value')]
    assert chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1.001
    assert 0 < page.number(".max >> nth=0") < 1
