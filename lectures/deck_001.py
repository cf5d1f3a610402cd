"""Deck 001, "Transformers" (CS-433). Items in page order.

The deck's letters: T_in and T_out tokens, D features, D_K and D_V widths of keys and values, H heads, weights P,
outputs Z.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import anyformer as af

from . import inside
from .item import Table, item, missing, section
from .run import data
from .show import documented, figure, heatmap, refusal, shipped, verdict

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


section("001-1", "Sequences everywhere")


@item("001-1-01", kind="claim")
def sequence_to_sequence() -> list[Table]:
    """Many problems map one sequence to another: words, images, sounds, points.

    `anyformer tasks` lists 24 problems with the columns of their data: what goes in, and what comes out. Below them,
    recipes that turn each kind of input into a sequence of vectors; each runs here.
    """
    said = subprocess.run([sys.executable, "-m", "anyformer", "tasks"], capture_output=True, text=True, check=True)
    lines = [re.split(r"\s{2,}", line.strip()) for line in said.stdout.splitlines()[1:] if line.strip()]
    tasks = {task: columns.split(", ") for task, _, columns in lines}
    assert len(tasks) == 24 and all(tasks.values())
    wanted = {"translate": ["source", "target"], "classify-audio": ["audio", "label"], "tag": ["tokens", "tags"]}
    assert all(tasks[task] == columns for task, columns in wanted.items())
    image, rows = torch.zeros(1, 3, 32, 32), []
    batches: dict[str, tuple[str, dict[str, Tensor]]] = {
        "text": ("bert-tiny", {"input_ids": IDS}),
        "text to text": ("transformer-tiny", {"input_ids": IDS, "decoder_input_ids": IDS[:, :2]}),
        "image": ("vit-tiny", {"pixel_values": image}),
        "sound": ("ast-tiny", {"input_values": torch.zeros(1, 48, 32)}),
        "video": ("timesformer-tiny", {"pixel_values": torch.zeros(1, 4, 3, 32, 32)}),
        "set of points": ("set-transformer-tiny", {"items": torch.zeros(1, 6, 2)}),
        "table": ("ft-transformer-tiny", {"numbers": torch.zeros(1, 3), "categories": torch.zeros(1, 2).long()}),
        "image to text": ("git-tiny", {"pixel_values": image, "input_ids": IDS}),
        "image and text": ("clip-tiny", {"pixel_values": image, "input_ids": IDS}),
    }
    for kind, (recipe, batch) in batches.items():
        model = af.build(recipe).eval()
        stage = next(iter(model.stages))
        with af.look(model, f"{stage}.input") as seen, torch.no_grad():
            model(**batch)
        vectors = seen[f"{stage}.input"]
        assert vectors.dim() == 3 and vectors.shape[1] > 1 and bool(vectors.isfinite().all())
        rows.append([kind, recipe, vectors.shape[1]])
    listed = [[task, ", ".join(columns)] for task, columns in tasks.items()]
    return [Table(["task", "columns"], listed), Table(["input", "recipe", "vectors"], rows)]


@item("001-1-02", kind="example", cost="slow", partly="SmolLM2-135M is small, and its answers are often wrong")
def chatbot() -> str:
    """A chatbot: the conversation so far goes in, framed as turns, and the answer comes out token by token."""
    generate = shipped("generate", "smollm2")
    question = "What is the capital of France?"
    framed = generate.tokenizer.chat([{"role": "user", "content": question}])
    assert question in framed and framed.rstrip().endswith("assistant")  # the model goes on as the assistant
    answer = str(generate(question, max_new_tokens=12, do_sample=False))
    assert "Paris" in answer
    return f"{framed}{answer}"


@item("001-1-03", kind="figure")
def images_as_sequences() -> Table:
    """An image is a sequence of patches: 224 x 224 pixels are 14 x 14 patches of 16 x 16, and a class token."""
    model = af.build("vit-b16", n_layers=1).eval()
    with af.look(model, "encoder.input") as seen, torch.no_grad():
        model(pixel_values=torch.zeros(1, 3, 224, 224))
    assert seen["encoder.input"].shape == (1, 14 * 14 + 1, 768)
    return Table(["what", "number"], [["patches", 14 * 14], ["class token", 1], ["features of a token", 768]])


@item("001-1-04", kind="figure", partly="no shipped model answers questions about an image yet")
def image_then_text() -> Any:
    """A multimodal sequence: the tokens of an image, then those of a text, in one causal decoder.

    Tokens of the text see the image and the text before them.
    """
    model = af.build("git-tiny").eval()
    batch = {"input_ids": torch.tensor([[1, 5, 6, 7]]), "pixel_values": torch.randn(1, 3, 32, 32)}
    with af.look(model, "*.self.weights") as seen, torch.no_grad():
        model(**batch)
    weights = next(w for name, w in seen.items() if name.startswith("decoder"))[0].mean(0)  # [tokens, tokens]
    text = weights[-4:]  # the four tokens of the text
    assert bool((text[:, :-4].sum(-1) > 0).all())  # each sees the image
    assert bool((text[:, -4:].triu(1) == 0).all())  # none sees the text after it
    return heatmap([weights], ["image tokens, then 4 of text"], size=3.2)


section("001-2", "The parts of a transformer")


@item("001-2-04", kind="mechanism", wrong={"heads": ("classify", "classify", "classify")})
def output_transformation(heads: tuple[str, str, str] = ("classify", "tag", "masked")) -> Table:
    """The output transformation decides the task: one class, a class for each token, or a token of the vocabulary."""
    shapes = [list(af.build("bert-tiny", head=head).eval()(input_ids=IDS).logits.shape) for head in heads]
    assert [len(shape) for shape in shapes] == [2, 3, 3]
    assert shapes[1][:2] == [1, 5] and shapes[2] == [1, 5, 256]
    return Table(["head", "shape of the logits"], list(zip(heads, shapes, strict=True)))


@item("001-2-05", kind="figure", also=("003-23-03",))
def pre_norm_block() -> Table:
    """A block: normalize, attend, add; normalize, feed forward, add.

    With the norm at the start of each branch, the sum is never normalized: it grows from block to block.
    """
    model = af.build("gpt2-tiny", n_layers=6).eval()
    order = [point for point in model.points if "blocks.0." in point]
    assert order.index("decoder.blocks.0.self.weights") < order.index("decoder.blocks.0.feedforward.hidden")
    outputs = [f"decoder.blocks.{i}.output" for i in range(6)]
    with af.look(model, *outputs) as seen, torch.no_grad():
        model(input_ids=torch.randint(5, 250, (4, 32)))
    sizes = [float(seen[name].pow(2).mean().sqrt()) for name in outputs]
    assert sizes == sorted(sizes)
    return Table(["block", "root mean square of its output"], list(enumerate(sizes)))


section("001-3", "Tokens and embeddings")


@item("001-3-01", kind="example", cost="slow")
def slide_sentence_in_pieces() -> list[Table]:
    """A tokenizer cuts "Transformers are awesome!" into pieces, and each piece is an id of its vocabulary.

    The slide's ids are invented, and one is 0 although it counts from 1; a vocabulary with its entries gives the same
    (a space at the end of a piece is written _). A real vocabulary, SmolLM2's, cuts elsewhere. Joined, the pieces give
    the text back.
    """
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    text, pieces = "Transformers are awesome!", ["<User>", "trans", "form", "ers_", "are_", "awe", "some", "!"]
    wanted = [0, 5124, 1029, 645, 3001, 6931, 7330, 10]
    vocabulary = dict(zip(pieces, wanted, strict=True))
    engine = Engine(models.WordPiece({**vocabulary, "[UNK]": 1}, unk_token="[UNK]", continuing_subword_prefix=""))
    engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "_")])
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), "isolated")
    engine.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("_", " ")])
    engine.add_special_tokens([AddedToken("<User>", normalized=False)])
    slide, real = af.Tokenizer(engine), shipped("generate", "smollm2").tokenizer
    assert slide.encode(f"<User>{text}") == wanted and slide.decode(wanted) == text.lower()
    ids = real.encode(text)
    assert "".join(real.decode([one]) for one in ids) == real.decode(ids) == text
    tables = ("the slide's vocabulary", pieces, wanted), ("SmolLM2's", real.tokens(ids), ids)
    return [Table(["piece", "id"], list(zip(*columns, strict=True)), title) for title, *columns in tables]


@item("001-3-02", kind="mechanism", cost="fast", wrong={"retrain_on": "quite another text, zebras and xylophones"})
def tokenizer_is_fixed(retrain_on: str = "") -> Table:
    """A tokenizer is a fixed procedure: no gradient changes it, and the model has no parameters of it."""
    tokenizer = af.Tokenizer.train(iter(TEXTS * 20), kind="bpe", vocab_size=280, progress=False)
    before = tokenizer.encode(TEXTS[0])
    model = af.build("gpt2-tiny", vocab_size=len(tokenizer)).eval()
    model(input_ids=torch.tensor([before]), labels=torch.tensor([before])).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    if retrain_on:
        tokenizer = af.Tokenizer.train(iter([retrain_on] * 20), kind="bpe", vocab_size=280, progress=False)
    assert tokenizer.encode(TEXTS[0]) == before
    assert not [name for name in model.state_dict() if "tokenizer" in name]
    return Table(["text", "ids before and after a step"], [[TEXTS[0], before]])


TEXTS = ["transformers are awesome", "attention is all you need"]


@item("001-3-03", kind="formula", wrong={"first": 1})
def one_vector_an_id(first: int = 0) -> list[Any]:
    """A token's id picks a row w of the embedding table, with D features.

    The slide counts ids from 1; every implementation counts from 0.
    """
    model = af.build("gpt2-tiny").eval()
    words, positions = (table(model, "decoder").detach() for table in (inside.words, inside.positions))
    n = model.config.vocab_size
    assert words.shape == (n, model.config.d_model)  # N_vocab x D
    ids = torch.arange(first, first + 4)
    with af.look(model, "decoder.input") as seen, torch.no_grad():
        model(input_ids=ids[None])
    assert torch.allclose(seen["decoder.input"][0] - positions[:4], words[:4], atol=1e-6)  # the first id has row 0
    said = [refusal(lambda i=i: model(input_ids=torch.tensor([[i]]))) for i in (first - 1, first + n)]  # type: ignore[misc]
    rows = [[int(i), row] for i, row in zip(ids, words[:4, :3].tolist(), strict=True)]
    return [Table(["id", "first features of w"], rows), *said]


@item("001-3-05", kind="claim")
def embeddings_are_learned() -> Table:
    """The embedding table is learned with everything else: rows of tokens that occur get a gradient, others none.

    GPT-2 uses the same table for its output, where every token counts; here the two are apart.
    """
    model, ids = af.build("gpt2-tiny", tied=False).eval(), torch.tensor([[5, 6, 9, 6, 5]])
    model(input_ids=ids, labels=ids).loss.backward()
    gradient = inside.words(model, "decoder").grad
    assert gradient is not None
    touched = gradient.abs().sum(1).nonzero().flatten().tolist()
    assert touched == sorted(set(ids[0].tolist()))
    before = inside.words(model, "decoder").detach().clone()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    moved = (inside.words(model, "decoder").detach() - before).abs().sum(1).nonzero().flatten().tolist()
    assert moved == touched
    return Table(["ids that occurred", "rows with a gradient", "rows that a step moved"], [[touched, touched, moved]])


@item("001-3-07", kind="formula", also=("001-3-08",), wrong={"transposed": True})
def patches_are_one_matrix(transposed: bool = False) -> Table:
    """A patch of 16 x 16 pixels in 3 colors is a vector of 768 numbers; one matrix W maps every patch to D features.

    ViT-B/16 has a matrix of 768 x 768. It is the same as a convolution whose stride is the size of the patch.
    """
    model, image = af.build("vit-b16", n_layers=1).double().eval(), _normal(1, 3, 224, 224)
    with af.look(model, "encoder.input") as seen, torch.no_grad():
        model(pixel_values=image)
    tokens = seen["encoder.input"][0, 1:] - inside.positions(model, "encoder").detach()[1:]  # without the class token
    weight, bias = inside.patches(model)
    assert weight.shape == (768, 16 * 16 * 3)
    patches = F.unfold(image.mT if transposed else image, 16, stride=16)[0].T  # [196, 768]
    assert torch.allclose(patches @ weight.T + bias, tokens, atol=1e-9)
    by_convolution = F.conv2d(image, weight.view(768, 3, 16, 16), bias, stride=16)[0].flatten(1).T
    assert torch.allclose(by_convolution, tokens, atol=1e-9)
    return Table(["what", "shape"], [["patches", "196 x 768"], ["W", "768 x 768"], ["tokens", list(tokens.shape)]])


section("001-4", "Attention")


@item("001-4-01", kind="formula", also=("002-7-05",), wrong={"axis": -2})
def weighted_mean(axis: int = -1) -> Table:
    """z_i = Σ_j p_ij v_j: each output is a weighted mean of the values; the rows of P are distributions."""
    query, key, value = _normal(1, 1, 3, 4), _normal(1, 1, 5, 4), _normal(1, 1, 5, 2)  # T_out = 3, T_in = 5, D_V = 2
    p = (query @ key.transpose(-1, -2) / 4**0.5).softmax(axis)  # by hand; D_K = 4
    assert torch.allclose(af.attend(query, key, value), p @ value, atol=1e-12)
    assert torch.allclose(af.attention_weights(query, key), p, atol=1e-12)
    assert torch.allclose(p.sum(-1), torch.ones((), dtype=torch.float64), atol=1e-12) and float(p.min()) >= 0
    return Table([f"p_i{j + 1}" for j in range(5)], p[0, 0].tolist(), "P, a row for each query")


@item("001-4-02", kind="formula", also=("002-7-04", "004-6-06"), wrong={"scale": 1.0})
def softmax_of_scaled_products(scale: float = 0.5) -> Table:
    """P = softmax(QKᵀ / √D_K), row by row: p_ij = exp(q_i·k_j / √D_K) / Σ_j' exp(q_i·k_j' / √D_K)."""
    query, key = _normal(1, 1, 3, 4), _normal(1, 1, 5, 4)  # D_K = 4, √D_K = 2
    weights = af.attention_weights(query, key, scale=scale)[0, 0]
    for i in range(3):
        scores = [math.exp(float(query[0, 0, i] @ key[0, 0, j]) / 2) for j in range(5)]
        assert torch.allclose(weights[i], torch.tensor(scores).double() / sum(scores), atol=1e-6)
    return Table([f"key {j}" for j in range(5)], weights.tolist(), "P")


@item("001-4-03", kind="claim", also=("003-7-03",))
def unscaled_is_sharp() -> Any:
    """Without the scale, the weights of a fresh model are sharp: nearly all on one key, more so for wide heads.

    Drawn: entropy of the weights as a fraction of the largest possible, over 64 keys.
    """
    widths = [4, 16, 64, 256, 1024]
    fractions: dict[str, list[float]] = {"scaled": [], "unscaled": []}
    for width in widths:
        query, key = torch.randn(1, 1, 64, width), torch.randn(1, 1, 64, width)
        for name, scale in (("scaled", None), ("unscaled", 1.0)):
            weights = af.attention_weights(query, key, scale=scale)
            entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
            fractions[name].append(float(entropy) / math.log(64))
    assert fractions["scaled"][-1] > 0.8 and fractions["unscaled"][-1] < 0.1
    drawn, axes = figure(5, 2.8)
    for name, values in fractions.items():
        axes.semilogx(widths, values, marker="o", label=name)
    axes.set(xlabel="d_k", ylabel="entropy / log 64", ylim=(0, 1.05), title="how even the weights of a fresh layer are")
    axes.legend()
    return drawn


@item("001-4-04", kind="claim", documented="python experiments/01_scale.py")
def unscaled_learns_slowly() -> Table:
    """Sharp weights have small gradients, so an unscaled layer takes long to leave where it begins.

    Documented run: steps until one block has learned to reverse letters, at most 1,000. With wide heads it never does
    without the scale; at a width of 16 there is no clear difference.
    """
    page, rows = "experiments/01-scale.md", []
    for width in ("16", "64", "256"):
        row = rf"\| {width} \| (\d+) ± (\d+) \| (\d+) ± (\d+) \|"
        scaled, spread, unscaled, other = map(int, documented(page, row))
        rows.append([width, scaled, unscaled, (unscaled - scaled) / (spread + other)])
    scaled, learned = map(int, documented(page, r"\| 1,024 \| (\d+) ± \d+ \| not in 1,000 \((\d) of 3 did\)"))
    assert (scaled, learned) == (242, 0)
    assert abs(rows[0][3]) < 1 < min(rows[1][3], rows[2][3])  # in sums of the two deviations over the seeds
    assert verdict("01-scale", "holds").endswith("at 16 there is no clear difference.")
    return Table(
        ["d_k", "steps with the scale", "without", "difference in deviations"], [*rows, ["1,024", scaled, "never", ""]]
    )


@item("001-4-05", kind="claim", beside="python experiments/01_scale.py")
def scale_keeps_gradients() -> Table:
    """The scale keeps the weights near even at the start, so that gradients reach all keys.

    A weight w moves with its own score by w (1 - w). Measured here, and in a documented run, as a fraction of what it
    is when all 64 weights are equal.
    """
    rows = []
    for width, said in ((16, "16"), (1024, "1,024")):
        query, key = torch.randn(1, 1, 256, width), torch.randn(1, 1, 64, width)
        measured = []
        for scale in (None, 1.0):
            weights = af.attention_weights(query, key, scale=scale)
            measured.append(float((weights * (1 - weights)).mean() / (1 / 64 * (1 - 1 / 64))))
        row = rf"\| {said} \| [\d.]+ ± [\d.]+ \| ([\d.]+) ± [\d.]+ \| [\d.]+ ± [\d.]+ \| ([\d.]+) "
        known = [float(x) for x in documented("experiments/01-scale.md", row)]
        assert all(abs(ours - theirs) < 0.06 for ours, theirs in zip(measured, known, strict=True))
        rows.append([width, *measured, *known])
    assert rows[1][3:] == [0.977, 0.082] and rows[1][1] > 10 * rows[1][2]
    return Table(["d_k", "gradient with the scale", "without", "documented: with", "without"], rows)


@item(
    "001-4-06", kind="formula", also=("002-7-02", "003-8-02", "003-9-01", "004-6-05"), wrong={"value_from_keys": True}
)
def three_projections(value_from_keys: bool = False) -> Table:
    """Queries, keys and values are three linear maps of the same tokens: Q = X W_Q, K = X W_K, V = X W_V.

    BERT keeps the three matrices as one and adds a bias to each. Every head has a slice of them.
    """
    model = af.build("bert-tiny", head="base").eval()
    with af.look(model, "encoder.input", "encoder.blocks.0.self.*") as seen, torch.no_grad():
        model(input_ids=IDS)
    x = seen["encoder.input"][0]  # T x D = 5 x 64
    maps, rows = inside.projections(model, "encoder"), []
    for name in ("query", "key", "value"):
        weight, bias = maps["key" if value_from_keys and name == "value" else name]
        heads = (x @ weight.T + bias).view(5, 4, 16).transpose(0, 1)  # 4 heads of D_K = 16
        assert torch.allclose(heads, seen[f"encoder.blocks.0.self.{name}"][0], atol=1e-5)
        rows.append([f"W_{name[0].upper()}", list(weight.T.shape)])
    return Table(["matrix", "D x heads D_K"], rows)


@item("001-4-07", kind="formula", wrong={"scale": 0.25})
def self_attention_in_one_line(scale: float = 0.5) -> str:
    """Z = softmax(X W_Q W_Kᵀ Xᵀ / √D_K) X W_V: self-attention in one line."""
    x, w_q, w_k, w_v = _normal(1, 5, 8), _normal(8, 4), _normal(8, 4), _normal(8, 8)
    line = torch.softmax(x @ w_q @ w_k.T @ x.transpose(1, 2) / 4**0.5, dim=-1) @ x @ w_v
    ours = af.attend((x @ w_q)[:, None], (x @ w_k)[:, None], (x @ w_v)[:, None], scale=scale)[:, 0]
    assert torch.allclose(ours, line, atol=1e-9)
    return f"largest difference {float((ours - line).abs().max()):.0e}"


QUERY, KEYS = torch.tensor([[[[102.0, 99.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]])  # D_K = 3


@item("001-4-08", kind="example")
def worked_scores() -> Table:
    """The worked example, steps 1 and 2: the query of the first word meets both keys with scores of 102 and 99."""
    scores = (QUERY @ KEYS.transpose(-1, -2)).flatten().tolist()
    assert scores == [102, 99]
    return Table(["word", "q_1 · k"], list(zip(["first", "second"], scores, strict=True)))


@item("001-4-09", kind="example")
def worked_division() -> Table:
    """Step 3: divided by √D_K they are 58.9 and 57.2, which holds for D_K = 3 alone.

    The figure this was drawn after has D_K = 64, and 12.75 and 12.375.
    """
    rows = [[d_k, 102 / d_k**0.5, 99 / d_k**0.5] for d_k in (3, 64)]
    assert [round(x, 1) for x in rows[0][1:]] == [58.9, 57.2] and rows[1][1:] == [12.75, 12.375]
    return Table(["D_K", "first", "second"], rows)


@item("001-4-10", kind="example")
def worked_softmax() -> Table:
    """Step 4: the softmax of them is 0.85 and 0.15; with D_K = 64 it would be 0.59 and 0.41."""
    for_3, for_64 = (af.attention_weights(QUERY, KEYS, scale=d_k**-0.5).flatten().tolist() for d_k in (3, 64))
    assert [round(x, 2) for x in for_3] == [0.85, 0.15] and [round(x, 2) for x in for_64] == [0.59, 0.41]
    return Table(["D_K", "first", "second"], [[3, *for_3], [64, *for_64]])


@item("001-4-11", kind="example")
def worked_sum() -> Table:
    """Steps 5 and 6: each value is weighted, and the sum is the output, z_1 = 0.85 v_1 + 0.15 v_2."""
    values = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])  # two values that can be told apart
    z = af.attend(QUERY, KEYS, values).flatten()
    assert torch.allclose(z, torch.tensor([0.85, 0.15]), atol=5e-3)
    return Table(["part of v_1", "part of v_2"], [z.tolist()])


section("001-5", "Several heads")


@item(
    "001-5-01",
    kind="claim",
    also=("003-13-01",),
    beside="python experiments/02_equalities.py; python experiments/06_training.py",
)
def heads_like_filters() -> list[Any]:
    """Several heads give several patterns in one layer, as several filters do in a convolution.

    Nine heads that are set by hand, each with all its weight on one neighbor, equal a 3 x 3 convolution. Documented
    run: eight heads learn more than one head of the same total width.
    """
    side, image, kernel = 6, _normal(1, 36, 4), _normal(5, 4, 3, 3)  # 6 x 6 cells of 4 features; 5 filters
    row, column = torch.arange(36) // side, torch.arange(36) % side
    out, grids = torch.zeros(1, 36, 5, dtype=torch.float64), []
    for i, j in itertools.product(range(3), range(3)):
        near = (row[:, None] + i - 1 == row) & (column[:, None] + j - 1 == column)  # [queries, keys]
        mixed = af.attend(1e4 * near.double()[None, None], torch.eye(36).double()[None, None], image[:, None])[:, 0]
        out += (mixed * near.any(1, keepdim=True)) @ kernel[:, :, i, j].T  # beyond the border there is nothing
        grids.append(near[14].view(side, side))
    convolved = F.conv2d(image.mT.view(1, 4, side, side), kernel, padding=1).flatten(2).mT
    apart = float((out - convolved).abs().max())
    assert apart < 1e-12
    told = documented(
        "experiments/02-equalities.md", r"nine heads set by hand = 3×3 convolution \|.*\| ([\d.e-]+) \| 0 \|"
    )
    assert float(told[0]) < 2e-14
    page, pattern = "experiments/06-training.md", r"\| {} \| [\d,]+ \| [\d.]+ .*?\| ([\d.]+) "
    eight, one = (float(documented(page, pattern.format(name))[0]) for name in ("as usual", "1 head"))
    assert (eight, one) == (0.994, 0.971)
    rows = [["nine heads and a convolution differ by", apart], ["8 heads: numbers right", eight], ["1 head", one]]
    return [Table(["", ""], rows), heatmap(grids, [f"head {n}" for n in range(1, 10)], ("x", "y"), size=1.1)]


@item("001-5-03", kind="formula", also=("003-8-04",), wrong={"scaled_by": 6})
def widths_of_heads(scaled_by: int = 4) -> Table:
    """Each head has matrices of its own: W_Q and W_K are D x D_K, W_V is D x D_V, and D_V need not be D_K."""
    x, heads, d_k, d_v = _normal(1, 5, 12), 2, 4, 6
    w_q, w_k, w_v = _normal(heads, 12, d_k), _normal(heads, 12, d_k), _normal(heads, 12, d_v)
    out = af.attend(*(torch.einsum("btd,hdk->bhtk", x, w) for w in (w_q, w_k, w_v)))
    assert out.shape == (1, heads, 5, d_v)
    for h in range(heads):  # each by itself; the scale is that of D_K
        scores = (x[0] @ w_q[h]) @ (x[0] @ w_k[h]).T / scaled_by**0.5
        assert torch.allclose(out[0, h], scores.softmax(-1) @ (x[0] @ w_v[h]), atol=1e-9)
    return Table(["tensor", "shape"], [["Q, K", [1, 2, 5, 4]], ["V", [1, 2, 5, d_v]], ["output", list(out.shape)]])


section("001-6", "Positions")


@item("001-6-02", kind="example", also=("003-9-04",))
def cats_and_dogs() -> Table:
    """Without positions "She prefers cats to dogs" and "She prefers dogs to cats" are one set of words.

    Attention gives each word the same vector in both; with positions it does not.
    """
    words = {"She": 0, "prefers": 1, "cats": 2, "to": 3, "dogs": 4}
    first, second = [list(words.values()), [0, 1, 4, 3, 2]]
    vectors, places = _normal(5, 8), af.positions.sinusoids(torch.arange(5), 8).double()
    rows = []
    for name, added in (("without positions", 0 * places), ("with sinusoidal positions", places)):
        a, b = (af.attend(x, x, x)[0, 0] for x in ((vectors[ids] + added)[None, None] for ids in (first, second)))
        rows.append([name, float((a[2] - b[4]).abs().max())])  # "cats" in both
    assert rows[0][1] < 1e-12 and rows[1][1] > 0.01
    return Table(["", 'largest difference of "cats" between the two sentences'], rows)


@item("001-6-04", kind="mechanism", also=("003-11-07",), wrong={"by_token": True})
def learned_positions(by_token: bool = False) -> Table:
    """Learned positions: a table with a row for each position is added to the embeddings, and learned like them.

    Rows of positions that never occur get no gradient. The table is T x D here; the slide writes D x T.
    """
    model = af.build("bert-tiny", head="base").eval()
    given = {"position_ids": IDS} if by_token else {}  # which would index the table by the token
    model(input_ids=IDS, **given).last_hidden_state.square().sum().backward()
    table = inside.positions(model, "encoder")
    assert table.shape == (128, 64) and table.grad is not None  # 128 positions, 64 features
    touched = table.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == [0, 1, 2, 3, 4]  # a row for a position, not for a token
    return Table(["table", "tokens", "rows with a gradient"], [["128 x 64", IDS[0].tolist(), touched]])


@item(
    "001-6-05",
    kind="claim",
    partly="a position encoding is chosen by family, not yet for every recipe",
    beside="python experiments/03_positions.py",
)
def many_encodings() -> Table:
    """Many hand-made encodings exist; they differ most beyond the length of training.

    Documented run: the letter three positions before, learned on 32 positions and read on 64. Recipes that use each
    of them run here on a text of 20 tokens.
    """
    row, ids = r"\| {} \| ([\d.]+) .*?\| [\d.]+ .*?\| ([\d.]+) ", torch.full((1, 20), 7)
    recipes = {
        "rotary": "roformer-tiny",
        "Transformer-XL's": "transformer-xl-tiny",
        "T5's buckets": "t5-tiny",
        "sinusoidal": "transformer-tiny",
        "learned table": "gpt2-tiny",
    }
    rows = []
    for name in ("rotary", "Transformer-XL's", "T5's buckets", "ALiBi", "sinusoidal", "learned table"):
        found = [float(x) for x in documented("experiments/03-positions.md", row.format(name))]
        rows.append([name, recipes.get(name, "none"), *found])
    for recipe in recipes.values():
        model = af.build(recipe).eval()
        more = {"decoder_input_ids": ids[:, :2]} if "decoder" in model.stages and "encoder" in model.stages else {}
        with torch.no_grad():
            assert bool(model(input_ids=ids, **more).logits.isfinite().all())
    assert [beyond for *_, beyond in rows] == [0.999, 0.988, 0.635, 0.365, 0.122, 0.09]
    return Table(["encoding", "recipe", "right within 32 positions", "right beyond"], rows)


section("001-7", "The MLP")


@item("001-7-02", kind="formula", wrong={"d_hidden": 64})
def mlp_widens(d_hidden: int | None = None) -> Table:
    """The MLP of a block has two matrices: the slide makes them D x D, GPT-2 widens to 4 D between them.

    Both can be built; shown is what each MLP makes of 5 tokens between its matrices.
    """
    rows = []
    for name, width in (("GPT-2", d_hidden), ("as on the slide", 64)):
        model = af.build("gpt2-tiny", d_hidden=width).eval()  # D = 64
        with af.look(model, "decoder.blocks.0.feedforward.hidden") as seen, torch.no_grad():
            model(input_ids=IDS)
        hidden, mlp = seen["decoder.blocks.0.feedforward.hidden"], inside.feed_forward(model, "decoder")
        rows.append([name, list(hidden.shape), list(mlp.up.weight.T.shape), list(mlp.down.weight.T.shape)])
    assert rows[0][1:] == [[1, 5, 4 * 64], [64, 4 * 64], [4 * 64, 64]]
    assert rows[1][1:] == [[1, 5, 64], [64, 64], [64, 64]]
    return Table(["MLP", "between", "W_1", "W_2"], rows)


@item("001-7-03", kind="claim")
def relu_or_gelu() -> Any:
    """The activation between the two matrices is ReLU or GELU, or another; GELU is smooth around zero."""
    x = torch.linspace(-3, 3, 121)
    curves = {"ReLU": F.relu(x), "GELU": F.gelu(x), "SiLU": F.silu(x)}
    assert torch.allclose(curves["GELU"], x * 0.5 * (1 + torch.erf(x / 2**0.5)), atol=1e-6)
    assert float((curves["GELU"] - curves["ReLU"]).abs().max()) < 0.2
    for activation in ("relu", "gelu", "silu"):
        af.build("transformer-tiny", activation=activation).eval()
    drawn, axes = figure(4.5, 2.8)
    for name, y in curves.items():
        axes.plot(x, y, label=name)
    axes.legend()
    axes.grid(alpha=0.3)
    return drawn


section("001-8", "From vectors to answers")


@item("001-8-01", kind="mechanism", wrong={"exchanged": True})
def pooling(exchanged: bool = False) -> Table:
    """One output for a sequence: from a special token, or from the mean of all patches; then a linear map."""
    pixels, rows = torch.randn(2, 3, 32, 32), []
    for way in ("class", "mean"):
        model = af.build("vit-tiny", pooling=way).eval()
        with af.look(model, "encoder.output") as seen, torch.no_grad():
            logits = model(pixel_values=pixels).logits
        vectors = seen["encoder.output"]  # [2, 17, 64], the class token first
        pooled = vectors[:, 0] if (way == "class") != exchanged else vectors[:, 1:].mean(1)
        weight, bias = inside.classifier(model)
        assert torch.allclose(pooled @ weight.T + bias, logits, atol=1e-5)
        rows.append([way, list(vectors.shape), list(logits.shape)])
    return Table(["pooling", "shape of the tokens", "of the logits"], rows)


@item("001-8-02", kind="mechanism", wrong={"shuffle": True})
def same_map_for_each_token(shuffle: bool = False) -> Table:
    """Several outputs: the same linear map on each token, so a token's logits depend on its own vector alone."""
    model = af.build("bert-tiny", head="tag").double().eval()
    with af.look(model, "encoder.output") as seen, torch.no_grad():
        logits = model(input_ids=torch.randint(5, 250, (4, 50))).logits.flatten(0, 1)  # [200 tokens, labels]
    ones = torch.ones(200, 1, dtype=torch.float64)  # for the bias
    vectors = torch.cat([seen["encoder.output"].flatten(0, 1), ones], dim=-1)
    if shuffle:
        logits = logits.flip(0)
    one_map = torch.linalg.pinv(vectors, rtol=1e-9) @ logits  # [features + 1, labels], by least squares
    assert torch.allclose(vectors @ one_map, logits, atol=1e-9)
    return Table(["tokens", "shape of the one map"], [[200, list(one_map.shape)]])


@item("001-8-03", kind="claim", cost="slow")
def heads_are_small() -> Table:
    """The output map is linear or a small MLP: a fraction of the parameters."""
    with torch.device("meta"):
        whole, bare = (
            sum(p.numel() for p in af.build("bert-base", head=head).parameters()) for head in ("classify", "base")
        )
    assert 0 < whole - bare < 0.01 * whole
    return Table(
        ["", "parameters"], [["bert-base with a classifier", whole], ["of these, the classifier", whole - bare]]
    )


section("001-9", "Vision transformers")


@item("001-9-01", kind="figure", cost="slow", also=("002-17-01", "003-21-01"))
def vit() -> Table:
    """ViT: patches, a class token, positions, L blocks; the answer is read from the class token after the last norm."""
    with torch.device("meta"):
        count = sum(p.numel() for p in af.build("vit-b16").parameters())
    assert round(count / 1e6, 1) == 86.6
    model = af.build("vit-tiny").eval()
    with af.look(model, "encoder.output") as seen, torch.no_grad():
        model(pixel_values=torch.randn(1, 3, 32, 32))
    y = seen["encoder.output"][0, 0]  # LN(z_L) of the class token
    assert abs(float(y.mean())) < 1e-5 and abs(float(y.var(unbiased=False)) - 1) < 1e-3
    return Table(["recipe", "parameters"], [["vit-b16", f"{count:,}"]])


@item("001-9-02", kind="claim")
def one_width() -> Table:
    """D is constant in all layers: a ViT has no pooling and no strides after its patches."""
    out = af.build("vit-tiny").eval()(pixel_values=torch.zeros(1, 3, 32, 32), output_hidden_states=True)
    shapes = {tuple(x.shape) for x in out.hidden_states}
    assert shapes == {(1, 17, 64)} and len(out.hidden_states) == 3  # what enters, and what two blocks give
    return Table(["layers", "shape"], [[len(out.hidden_states), list(shapes.pop())]])


@item("001-9-03", kind="claim")
def attention_as_convolution() -> Table:
    """Self-attention is more general than convolution: heads that look at fixed offsets are a convolution.

    Three heads, each with all its weight on one neighbor, equal a convolution of width 3.
    """
    x, kernel = _normal(1, 7, 4), _normal(5, 4, 3)  # 7 tokens of 4 features; 5 filters of width 3
    out = torch.zeros(1, 7, 5, dtype=torch.float64)
    for tap, offset in enumerate((-1, 0, 1)):
        place = (torch.arange(7)[:, None] + offset == torch.arange(7)).double()  # where this head looks
        inside = place.sum(-1, keepdim=True)
        weights = af.attention_weights(1e4 * place[None, None], torch.eye(7).double()[None, None])  # all on one key
        out += (weights[0, 0] * inside) @ x @ kernel[:, :, tap].T
    wanted = F.conv1d(x.transpose(1, 2), kernel, padding=1).transpose(1, 2)
    assert torch.allclose(out, wanted, atol=1e-9)
    return Table(["head", "looks at"], [[1, "the token before"], [2, "itself"], [3, "the token after"]])


@item("001-9-04", kind="claim", also=("004-25-02",))
def receptive_field() -> Any:
    """After one layer of attention a patch depends on the whole image; after a 3 x 3 convolution, on nine pixels."""
    pixels = torch.randn(1, 3, 32, 32, requires_grad=True)
    vit = af.build("vit-tiny", n_layers=1).eval()
    with af.look(vit, "encoder.blocks.0.output") as seen:
        vit(pixel_values=pixels)
    (by_vit,) = torch.autograd.grad(seen["encoder.blocks.0.output"][0, 5].square().sum(), pixels)
    convolved = F.conv2d(pixels, torch.randn(1, 3, 3, 3), padding=1)[0, 0, 16, 16]
    (by_cnn,) = torch.autograd.grad(convolved, pixels)
    maps = [(grad[0].abs().sum(0) > 0).float() for grad in (by_vit, by_cnn)]
    assert float(maps[0].mean()) == 1 and int(maps[1].sum()) == 9
    return heatmap(maps, ["a layer of attention", "a 3 x 3 convolution"], ("x", "y"))


@item(
    "001-9-05",
    kind="claim",
    holds="partly",
    documented="python benchmarks/results.py vit-1 hybrid-1 resnet-1; python experiments/10_pictures.py",
)
def vit_needs_data() -> Table:
    """ViTs need more data than CNNs: with 1% of CIFAR-10 a ResNet is far ahead, with all of it they are level.

    Documented runs of full length. In short runs (experiment 10) the lead of the ResNet is as large with much data as
    with little, so it holds in part.
    """
    few = documented("results.md", r"ViT had ([\d.]+)%, the hybrid ([\d.]+)%, ResNet ([\d.]+)%")
    names = ("vit-cifar", "hybrid-cifar", "resnet-cifar")
    many = [documented("results.md", rf"`{name}`, [\d.]+M[^|]*\| \**([\d.]+)")[0] for name in names]
    assert [float(x) for x in few] == [27.6, 45.9, 52.9]
    assert max(map(float, many)) - min(map(float, many)) < 0.5
    short = documented(
        "experiments/10-pictures.md", r"is \+([\d.]+) at\s+1%, \+([\d.]+) at\s+10%, \+([\d.]+) at\s+100%"
    )
    assert [float(x) for x in short] == [0.040, 0.043, 0.040]
    verdict("10-pictures", "holds partly")
    return Table(["network", "accuracy with 1%", "with all images"], list(zip(names, few, many, strict=True)))


@item(
    "001-9-06",
    kind="claim",
    partly="shown at small scale; accuracy against compute for several sizes is missing",
    documented="python benchmarks/results.py mae-chain vit-tenth",
)
def vit_after_pretraining() -> Table:
    """After pre-training a ViT is competitive: from 10% of CIFAR-10's labels (documented run)."""
    with_it, without = documented("results.md", r"reaches ([\d.]+)%, the same network from nothing ([\d.]+)%")
    assert float(with_it) > float(without) + 10
    return Table(["", "accuracy, %"], [["after MAE", with_it], ["from scratch", without]])


@item("001-9-07", kind="figure", cost="slow")
def patch_filters() -> Any:
    """The principal components of a trained patch embedding look like edges and colors."""
    model = shipped("classify-image", "cifar10").model
    weight, _ = inside.patches(model)  # D x 4*4*3
    _, values, components = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    kept = float(values[:28].square().sum() / values.square().sum())
    assert kept > 0.95
    drawn, axes = figure(7, 2.2, columns=7, rows=2)
    for one, component in zip(axes.flat, components, strict=False):
        one.imshow((component - component.min()).div(component.max() - component.min()).view(4, 4, 3))
        one.set_axis_off()
    return [f"28 components hold {kept:.3f} of the variance", drawn]


@item("001-9-08", kind="figure", cost="slow")
def position_similarity() -> Any:
    """Positions that a trained ViT has learned: those of one row or column are more alike than others.

    Next to each other they are most alike. In a fresh ViT none are.
    """
    apart = (torch.arange(8)[:, None] - torch.arange(8)).abs()  # of two columns, or two rows
    rows, columns = apart[:, None, :, None].expand(8, 8, 8, 8), apart[None, :, None, :].expand(8, 8, 8, 8)
    kinds = {
        "next to it": rows + columns == 1,
        "its row or column, further": (rows * columns == 0) & (rows + columns > 1),
        "elsewhere": (rows > 1) & (columns > 1),
    }
    means, grids = [], []
    for model in (shipped("classify-image", "cifar10").model, af.build("vit-cifar").eval()):
        with af.look(model, "encoder.input") as seen, torch.no_grad():
            model(pixel_values=torch.zeros(1, 3, 32, 32))
        vectors = seen["encoder.input"][0][-64:]  # a gray image: patches differ by their positions alone
        alike = F.cosine_similarity(vectors[:, None], vectors[None], dim=-1).view(8, 8, 8, 8)
        means.append([float(alike[pairs].mean()) for pairs in kinds.values()])
        grids.append(alike[3, 3].clamp(min=0))
    near, along, far = means[0]
    assert near > 0.8 > along > 0.4 > 0.2 > far and max(map(abs, means[1])) < 0.1
    table = Table(["cosine of two positions", "trained", "fresh"], list(zip(kinds, *means, strict=True)))
    titles = ["similarity to position (3, 3)", "fresh"]
    return [table, heatmap(grids, titles, ("column", "row"), size=3.2)]


@item("001-9-09", kind="formula", wrong={"keep": 0.0})
def rollout(keep: float = 0.5) -> Any:
    """Attention rollout: heads averaged, half of each layer's map mixed with the identity, and the layers multiplied.

    The slide leaves out the half for the residual connection: the plain product (`raw`) forgets that tokens keep their
    own. With it a token is itself in at least one of 2^n paths through n layers, whatever the weights are.
    """
    model, ids = af.build("bert-tiny", n_layers=3).eval(), torch.tensor([[5, 6, 7, 8, 9, 10]])
    with af.look(model, "*.self.weights") as seen, torch.no_grad():
        model(input_ids=ids)
    maps = [weights[0].mean(0) for weights in seen.values()]  # three layers, heads averaged, [6, 6]
    product = torch.eye(6)
    for layer in maps:
        product = (keep * torch.eye(6) + (1 - keep) * layer) @ product
    rolled, raw = (af.rollout(seen.values(), raw=plain)[0] for plain in (False, True))
    assert torch.allclose(rolled, product, atol=1e-6)
    assert torch.allclose(raw, maps[2] @ maps[1] @ maps[0], atol=1e-6)
    paths = [step for n in range(4) for step in itertools.combinations(maps, n)]  # which layers a path goes through
    every = [functools.reduce(lambda below, layer: layer @ below, path, torch.eye(6)) for path in paths]
    assert torch.allclose(rolled, torch.stack(every).mean(0), atol=1e-6)  # all 8 paths count alike
    assert torch.allclose(rolled.sum(-1), torch.ones(6), atol=1e-5)
    assert float(rolled.diagonal().min()) >= 1 / 8 and float(raw.diagonal().max()) < 1 / 4
    drawn = af.plot.rollout(seen).axes[0].images[0].get_array()
    assert torch.allclose(torch.as_tensor(drawn), rolled, atol=1e-6)
    return heatmap([rolled, raw], ["rollout", "plain product"])


COCO_TO_CIFAR = {name: name for name in ("airplane", "bird", "cat", "dog", "horse", "truck")}
COCO_TO_CIFAR |= {"car": "automobile", "boat": "ship"}


def _objects() -> Iterator[tuple[str, Any, Tensor]]:
    """Class, square piece of a COCO photo with an object somewhere in it, and which pixels of 32 x 32 are its box."""
    for split in ("train", "val"):
        known = json.loads(data("coco256", f"{split}.json").read_text(encoding="utf-8"))
        names = {one["id"]: one["name"] for one in known["categories"]}
        files = {one["id"]: one["file_name"] for one in known["images"]}
        with zipfile.ZipFile(data("coco256", f"{split}_images.zip")) as archive:
            for one in known["annotations"]:
                name, (x, y, width, height) = names[one["category_id"]], map(int, one["bbox"])
                side = int(1.6 * max(width, height))
                with Image.open(archive.open(files[one["image_id"]])) as image:
                    if name not in COCO_TO_CIFAR or min(width, height) < 40 or side > min(image.size):
                        continue
                    for _ in range(4):
                        left = int(torch.randint(max(0, x + width - side), min(x, image.width - side) + 1, ()))
                        top = int(torch.randint(max(0, y + height - side), min(y, image.height - side) + 1, ()))
                        inside = torch.zeros(1, 1, side, side)
                        inside[..., y - top : y - top + height, x - left : x - left + width] = 1
                        piece = image.convert("RGB").crop((left, top, left + side, top + side))
                        yield COCO_TO_CIFAR[name], piece, F.adaptive_avg_pool2d(inside, 32)[0, 0]


@item("001-9-10", kind="claim", cost="slow")
def attends_to_what_matters() -> list[Any]:
    """The model attends to regions that matter for the class: measured on photos that it never saw, with boxes.

    The attention inside an object's box, divided by the box's share of the area: 1 is what no preference gives. The
    weights by which the classifier gathers its patches are far above it. Rollout through nine layers is hardly above:
    it mixes nearly all patches with all.
    """
    classify = shipped("classify-image", "cifar10")
    classes, pieces, boxes = zip(*_objects(), strict=True)
    with af.look(classify.model, "*.self.weights", "classify.gather.weights") as seen, torch.no_grad():
        logits = classify.model(**classify.processor(pieces)).logits
    gathered = seen.pop("classify.gather.weights")[:, 0]  # [images, 1, 64 patches]
    mixed = torch.eye(64)
    for weights in seen.values():
        mixed = (0.5 * weights.mean(1) + 0.5 * torch.eye(64)) @ mixed
    inside, rows = torch.stack(boxes), []
    for name, maps in (("weights of the classifier", gathered), ("rollout", gathered @ mixed)):
        pixels = F.interpolate(maps.view(-1, 1, 8, 8), size=32)[:, 0]
        pixels = pixels / pixels.sum((1, 2), keepdim=True)
        ratios = [(pixels * box).sum((1, 2)) / box.mean((1, 2)) for box in (inside, inside.roll(4, 0))]
        rows.append([name, *(float(ratio.mean()) for ratio in ratios), float((ratios[0] > 1).float().mean())])
    assert rows[0][1] > 2 and rows[0][1] > 1.15 * rows[0][2] and rows[0][3] > 0.85
    assert 1 < rows[1][1] < 1.2 and rows[1][1] > rows[1][2]
    right = sum(classify.labels[i] == name for i, name in zip(logits.argmax(-1).tolist(), classes, strict=True))
    drawn, axes = figure(6, 3, columns=4, rows=2)
    for column, i in enumerate(range(0, len(pieces), len(pieces) // 4)[:4]):
        axes[0, column].imshow(pieces[i])
        axes[0, column].set_title(classes[i])
        axes[1, column].imshow(gathered[i].view(8, 8), cmap="Blues", vmin=0)
        for row in (0, 1):
            axes[row, column].set_axis_off()
    head = ["attention", "in the box, of its share of the area", "in another object's box", "images above 1"]
    return [Table(head, rows, f"{len(pieces)} pieces of photos, {right} classified rightly"), drawn]


section("001-10", "Encoders and decoders")


@item("001-10-01", kind="claim", holds="partly")
def one_output_a_token() -> Table:
    """An encoder sees all inputs at once and gives one output for each; a fixed size is the work of the head."""
    model = af.build("bert-tiny", head="base").eval()
    lengths = (3, 9, 20)
    shapes = [model(input_ids=torch.ones(1, n, dtype=torch.long)).last_hidden_state.shape for n in lengths]
    assert [shape[1] for shape in shapes] == list(lengths)
    with af.look(model, "*.self.weights") as seen, torch.no_grad():
        model(input_ids=IDS)
    assert all(weights.shape == (1, 4, 5, 5) and float(weights.min()) > 0 for weights in seen.values())  # all see all
    return Table(["tokens in", "vectors out"], [[n, shape[1]] for n, shape in zip(lengths, shapes, strict=True)])


@item("001-10-02", kind="formula", also=("004-14-03",), wrong={"temperature": 3.0})
def next_token(temperature: float = 1.0) -> Table:
    """A decoder draws x_(t+1) from softmax(f(x_1 … x_t)), appends it, and goes on."""
    model = af.build("gpt2-tiny", vocab_size=5).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
        ids = torch.tensor([[0, 1, 2]])
        wanted = model(input_ids=ids).logits[0, -1].softmax(-1)
        drawn = model.generate(
            input_ids=ids.expand(4000, 3),
            max_new_tokens=1,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            eos_token_id=None,
        )
    found = drawn[:, -1].bincount(minlength=5) / 4000
    assert float((found - wanted).abs().max()) < 0.03
    by_hand = ids
    for _ in range(6):  # greedy: the most probable is appended, and all is read again
        by_hand = torch.cat([by_hand, model(input_ids=by_hand).logits[:, -1:].argmax(-1)], dim=1)
    for cached in (True, False):
        greedy = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, use_cache=cached, eos_token_id=None)
        assert torch.equal(greedy, by_hand)
    return Table(
        ["token", "softmax", "drawn of 4,000"],
        [[i, float(a), float(b)] for i, (a, b) in enumerate(zip(wanted, found, strict=True))],
    )


@item("001-10-03", kind="claim")
def any_length() -> str:
    """A decoder's answer has any length: it ends with the end token. A learned table of positions bounds it."""
    model = af.build("gpt2-tiny").eval()  # 128 positions
    ids = model.generate(input_ids=IDS, max_new_tokens=50, eos_token_id=None)
    assert ids.shape == (1, 55)
    stop = int(ids[0, 7])
    ended = model.generate(input_ids=IDS, max_new_tokens=50, eos_token_id=stop)
    assert ended.shape[1] <= 8 and int(ended[0, -1]) == stop
    return refusal(lambda: model.generate(input_ids=IDS, max_new_tokens=200, eos_token_id=None))


@item("001-10-04", kind="mechanism", also=("002-5-01", "002-6-04"), wrong={"each_time": True})
def encode_once(each_time: bool = False) -> Table:
    """An encoder-decoder encodes the input once, then decodes token by token against the same memory.

    Encoding it again for each token would give the same answer by six passes.
    """
    model, passes = af.build("transformer-tiny").eval(), []
    for stage in ("encoder", "decoder"):
        model.stages[stage].register_forward_hook(lambda *_, stage=stage: passes.append(stage))

    def again_and_again() -> Tensor:
        ids = torch.tensor([[model.config.decoder_start]])
        for _ in range(6):
            ids = torch.cat([ids, model(input_ids=IDS, decoder_input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
        return ids

    with torch.no_grad():
        wanted = again_and_again()
        passes.clear()
        ids = again_and_again() if each_time else model.generate(input_ids=IDS, max_new_tokens=6, eos_token_id=None)
    assert torch.equal(ids, wanted)
    assert (passes.count("encoder"), passes.count("decoder")) == (1, 6)
    return Table(["stage", "passes for 6 tokens"], [[stage, passes.count(stage)] for stage in ("encoder", "decoder")])


section("001-11", "What transformers are used for")


@item("001-11-01", kind="claim")
def everything_is_a_token() -> Table:
    """Everything can be a token: words, patches, moments of a sound, pieces of a clip, points, columns of a table."""
    inputs: dict[str, dict[str, Tensor]] = {
        "bert-tiny": {"input_ids": IDS},
        "vit-tiny": {"pixel_values": torch.zeros(1, 3, 32, 32)},
        "ast-tiny": {"input_values": torch.zeros(1, 48, 32)},
        "timesformer-tiny": {"pixel_values": torch.zeros(1, 4, 3, 32, 32)},
        "set-transformer-tiny": {"items": torch.zeros(1, 6, 2)},
        "ft-transformer-tiny": {"numbers": torch.zeros(1, 3), "categories": torch.zeros(1, 2, dtype=torch.long)},
    }
    rows = []
    for name, batch in inputs.items():
        with torch.no_grad():
            logits = af.build(name, **({"head": "tag"} if name == "bert-tiny" else {})).eval()(**batch).logits
        assert bool(logits.isfinite().all())
        rows.append([name, ", ".join(f"{key} {list(x.shape)}" for key, x in batch.items()), list(logits.shape)])
    return Table(["recipe", "input", "logits"], rows)


missing(
    "001-11-02", "Transformers keep track over long ranges; GPT-4 takes 128,000 tokens, about 300 pages", kind="claim",
    needs="passkey retrieval by length; convolution against attention over distance is in experiments/05_paths.py",
)  # fmt: skip


@item(
    "001-11-03",
    kind="claim",
    also=("003-23-04",),
    documented="python benchmarks/results.py multi30k-transformer multi30k-convs2s multi30k-bytenet multi30k-sutskever",
)
def preferred_for_text() -> Table:
    """Transformers are preferred for text and vision: BLEU on Multi30k of four translators (documented runs)."""
    names = ["transformer-small", "convs2s-small", "bytenet-small", "sutskever-small"]
    row = r"\n\| `{}`[^|]*\| [\d.]+M \| \**([\d.]+)"
    found = {name: float(documented("results.md", row.format(name))[0]) for name in names}
    assert max(found, key=lambda name: found[name]) == "transformer-small"
    return Table(["recipe", "BLEU, English to German"], list(found.items()))


missing(
    "001-11-05", "Highly parallelizable over GPUs and nodes", kind="claim", cost="gpu",
    needs="a run on several GPUs; two processes on CPUs give the loss of one (tests/training/test_distributed.py)",
)  # fmt: skip
missing(
    "001-11-06", "Emergent abilities at scale: few-shot learning", kind="claim", cost="gpu",
    needs="accuracy by shots for several model sizes; one size is measured (experiments/12_limits.py)",
)  # fmt: skip
missing(
    "001-11-06a", "Abilities that appear with size only", kind="claim", cost="gpu",
    needs="one task scored for a ladder of model sizes, whose weights cannot be had offline",
)  # fmt: skip


@item("001-11-07", kind="claim", cost="slow", beside="python experiments/12_limits.py")
def zero_shot() -> list[Table]:
    """A language model judges without training on the task: it scores the possible continuations of a text.

    SmolLM2 says whether a review is positive or negative, by the likelier of two words. Eight plain reviews are judged
    here, 150 of SST-2 in the documented run.
    """
    stories = shipped("generate", "stories")
    prompt, choices = "Once upon a", (" time", " table")
    encode = stories.tokenizer.encode
    scores = stories.model.score(torch.tensor([encode(prompt)]), continuations=[encode(one) for one in choices]).totals
    assert float(scores[0]) > float(scores[1]) + 5
    first = [[f"{prompt}{one}", float(x)] for one, x in zip(choices, scores, strict=True)]
    judge, rows = shipped("generate", "smollm2"), []
    words = [judge.tokenizer.encode(word) for word in (" negative", " positive")]
    for review, right in REVIEWS.items():
        ids = torch.tensor([judge.tokenizer.encode(f"Review: {review}\nSentiment:")])
        negative, positive = judge.model.score(ids, continuations=words).totals.tolist()
        rows.append([review, right, positive - negative])
    correct = sum((odds > 0) == (right == "positive") for _, right, odds in rows)
    assert correct >= 7
    accuracy = float(documented("experiments/12-limits.md", r"\| 0 \| ([\d.]+) \|")[0])
    assert accuracy == 0.807
    return [
        Table(["continuation", "log-probability"], first),
        Table(["review", "is", "log-odds of positive"], rows, f"{correct} of 8 right"),
        Table(["SST-2, no examples", "accuracy"], [["SmolLM2", accuracy], ["the commoner class", 0.5]]),
    ]


REVIEWS = {
    "The actors are a joy to watch.": "positive",
    "Not a single joke lands.": "negative",
    "A warm, funny and moving film.": "positive",
    "The plot is dull and makes no sense.": "negative",
    "One of the best films of the year.": "positive",
    "I wanted my money back.": "negative",
    "Beautifully shot and wonderfully acted.": "positive",
    "A boring and tedious mess.": "negative",
}


section("001-12", "Summary")


@item("001-12-01", kind="claim", also=("003-18-02", "004-9-01"))
def mixing_between_and_within() -> Table:
    """Attention mixes between tokens, the MLP within each token.

    With attention silenced, changing one token changes that token alone.
    """
    rows = []
    for name, silenced in (("none", ()), ("attention", ("self",)), ("MLP", ("feedforward",))):
        torch.manual_seed(0)
        model = af.build("bert-tiny", head="base").eval()
        for part in silenced:
            for matrix in inside.output_maps(model, part):
                matrix.zero_()
        with torch.no_grad():
            a, b = (model(input_ids=torch.tensor([[5, 6, last]])).last_hidden_state[0] for last in (7, 8))
        rows.append([name, bool((a[0] - b[0]).abs().max() > 1e-6)])
    assert rows == [["none", True], ["attention", False], ["MLP", True]]
    return Table(["silenced", "the first token depends on the last"], rows)


@item("001-12-02", kind="claim", cost="slow")
def decoder_only_or_both() -> Table:
    """Chatbots are decoder-only; translation uses an encoder and a decoder."""
    rows = [
        [name, ", ".join(shipped(task, name).model.stages)]
        for task, name in (("generate", "smollm2"), ("translate", "en-de"))
    ]
    assert rows == [["smollm2", "decoder"], ["en-de", "encoder, decoder"]]
    return Table(["model", "stages"], rows)


class _Cosine(nn.Module):
    """A score of one's own is a module with queries and keys in, and a number for each pair out."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-1, -2)


class _Location(nn.Module):
    """What a query says of each place, whatever stands there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(5, 8))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ self.weight.T


@item("001-12-03", kind="reference", also=("001-12-05",))
def kinds_of_scores() -> Table:
    """Scores of attention in the literature: by content, by dot products of several kinds, by location (Weng's survey).

    Each becomes a distribution by the same softmax. The first four come along; the last two are written here.
    """
    q, k = torch.randn(3, 8), torch.randn(5, 8)
    additive, general, location = af.scores.AdditiveScore(8, 8, 8), af.scores.GeneralScore(8, 8), _Location()
    for part in (additive, general, location):
        for p in part.parameters():
            nn.init.normal_(p)
    v, w, u = additive.value, additive.query, additive.key
    kinds: list[tuple[str, str, nn.Module, Callable[[int, int], Tensor]]] = [
        ("dot", "q·k", af.scores.DotScore(scaled=False), lambda i, j: q[i] @ k[j]),
        ("scaled dot", "q·k / √d", af.scores.DotScore(), lambda i, j: q[i] @ k[j] / 8**0.5),
        ("general", "q·W k", general, lambda i, j: q[i] @ (general.weight @ k[j])),
        ("additive", "v·tanh(W q + U k)", additive, lambda i, j: v @ torch.tanh(w @ q[i] + u @ k[j])),
        ("content", "cos(q, k)", _Cosine(), lambda i, j: q[i] @ k[j] / (q[i].norm() * k[j].norm())),
        ("location", "(W q)_j", location, lambda i, j: location.weight[j] @ q[i]),
    ]
    rows = []
    for name, formula, score, pair in kinds:
        weights = af.attention_weights(q[None, None], k[None, None], score=score)[0, 0]
        scores = torch.stack([torch.stack([pair(i, j) for j in range(5)]) for i in range(3)]).exp()
        assert torch.allclose(weights, scores / scores.sum(1, keepdim=True), atol=1e-5)
        rows.append([name, formula, str([round(float(x), 2) for x in weights[0]])])
    return Table(["score", "formula", "weights of a query"], rows)


@item("001-12-04", kind="system", beside="python benchmarks/results.py shakespeare-cpu shakespeare")
def nanogpt() -> Table:
    """nanoGPT's character models of Shakespeare, with its settings and below its losses (documented runs).

    The network is built here: its size is that of the table.
    """
    rows = []
    for name, settings, ours, theirs in (
        ("gpt2-char-cpu", (4, 128), 1.796, 1.88),
        ("gpt2-char", (6, 384), 1.461, 1.47),
    ):
        with torch.device("meta"):
            model = af.build(name, vocab_size=65).eval()  # letters of Shakespeare
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        row = rf"`{name}` \((\d) layers, (\d+) wide[^|]*\| ([\d.]+)M \| \*\*([\d.]+)\*\*[^|]*\| ([\d.]+) "
        layers, width, size, loss, goal = documented("results.md", row)
        assert (model.config.n_layers, model.config.d_model) == (int(layers), int(width)) == settings
        assert abs(millions - float(size)) < 0.06 and (float(loss), float(goal)) == (ours, theirs) and ours < theirs
        rows.append([name, f"{millions:.1f} M", ours, theirs])
    return Table(["recipe", "parameters", "validation loss", "nanoGPT's"], rows)
