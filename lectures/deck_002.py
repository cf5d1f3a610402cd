"""Deck 002, "Transformers: encoder, decoder, BERT, MAE, DETR, ViT". Items in page order.

The deck writes tokens as columns (y = W u + PE); here, as everywhere in this library, a token is a row.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import anyformer as af

from . import inside
from .item import Table, item, section, unavailable
from .show import documented, figure, given, heatmap, refusal, shipped

IDS = torch.tensor([[5, 6, 7, 8, 9]])


section("002-1", "The architecture")


@item("002-1-01", kind="claim")
def attention_alone() -> Table:
    """The Transformer turns one sequence into another with attention alone: no recurrence, no convolution.

    Its inner points are self-attention, cross-attention and feed-forward parts; the LSTM of 2014 has others.
    """
    kinds = {name: {point.split(".")[3] for point in af.build(name).points if point.count(".") > 3} for name in RECIPES}
    assert kinds["transformer-tiny"] == {"self", "cross", "feedforward"}
    assert not kinds["sutskever-tiny"] & {"self", "cross"}
    return Table(["recipe", "parts of its blocks"], [[name, ", ".join(sorted(parts))] for name, parts in kinds.items()])


RECIPES = ("transformer-tiny", "sutskever-tiny")


@item("002-1-03", kind="figure")
def add_and_norm() -> Any:
    """Add & Norm: the sublayer's output is added to its input, then each token is normalized over its features.

    After it, every token has mean 0 and variance 1 (a fresh norm has gain 1 and shift 0).
    """
    model = af.build("transformer-tiny").eval()
    with af.look(model, "encoder.blocks.*.output") as seen, torch.no_grad():
        model(input_ids=IDS, decoder_input_ids=IDS[:, :2])
    output = seen["encoder.blocks.0.output"][0]  # [tokens, d_model]
    assert torch.allclose(output.mean(-1), torch.zeros(5), atol=1e-5)
    assert torch.allclose(output.var(-1, unbiased=False), torch.ones(5), atol=1e-3)
    drawn, axes = figure(6, 2.4)
    axes.boxplot(output.tolist())
    axes.set(title="features of each token after Add & Norm", xlabel="token", ylabel="value")
    return drawn


@item("002-1-04", kind="figure")
def two_layers_and_one() -> Table:
    """A feed-forward part has two linear layers, with an activation between them; the final projection is one."""
    model = af.build("transformer-tiny").eval()  # d_model 64, d_hidden 128
    with af.look(model, "encoder.blocks.0.feedforward.hidden") as seen, torch.no_grad():
        logits = model(input_ids=IDS, decoder_input_ids=IDS[:, :2]).logits
    hidden = seen["encoder.blocks.0.feedforward.hidden"]
    assert hidden.shape == (1, 5, 128) and logits.shape == (1, 2, 256)
    assert bool((hidden >= 0).all())  # ReLU between the two
    return Table(
        ["part", "widths"],
        [["feed-forward", "64 -> 128 -> 64"], ["final linear", "64 -> 256, one score a token of the vocabulary"]],
    )


section("002-2", "Positions by sines")


@item("002-2-01", kind="example")
def encoding_of_four_numbers() -> Table:
    """Sinusoidal positions with an embedding of four numbers: sines and cosines of two frequencies."""
    encoding = af.positions.sinusoids(torch.arange(3), 4)
    wanted = torch.tensor([[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 0.99995], [0.9093, -0.4161, 0.0200, 0.9998]])
    assert torch.allclose(encoding.double(), wanted.double(), atol=5e-5)
    head = ["position", "sin(p)", "cos(p)", "sin(p/100)", "cos(p/100)"]
    return Table(head, [[i, *row] for i, row in enumerate(encoding.tolist())])


@item(
    "002-2-02",
    kind="formula",
    partly="a recipe and a task for series of real vectors (sensors); here the map stands before the model",
    wrong={"first": 1},
)
def real_vectors(first: int = 0) -> Table:
    """A real feature vector u enters as y = W u + PE: a linear map takes the place of the table of words.

    `inputs_embeds` takes vectors that are ready; the model adds its positions. W learns with the rest.
    """
    model, w = af.build("transformer-tiny").eval(), torch.randn(64, 5, requires_grad=True)  # E x N
    u = torch.randn(1, 9, 5)  # a series of 9 steps with N = 5 features
    with af.look(model, "encoder.input") as seen:
        logits = model(inputs_embeds=u @ w.T, decoder_input_ids=IDS[:, :2]).logits
    encoding = af.positions.sinusoids(torch.arange(first, first + 9), 64, layout="halves")
    y = torch.stack([w @ u[0, p] + encoding[p] for p in range(9)])
    assert torch.allclose(seen["encoder.input"][0], y.float(), atol=1e-5)
    (gradient,) = torch.autograd.grad(logits.square().sum(), w)
    assert float(gradient.abs().min()) > 0
    return Table(["", "shape"], [["u", "9 x 5"], ["W", "64 x 5"], ["y", list(y.shape)]])


section("002-3", "Learned positions")


@item("002-3-01", kind="claim", documented="python experiments/03_positions.py")
def learned_as_good_as_sines() -> Table:
    """A learned table of positions does as well as sines, within the lengths it was trained on.

    Beyond them neither does. Documented run: the letter three positions before, learned on 32 positions, read on 64.
    """
    row = r"\| {} \| ([\d.]+) .*?\| [\d.]+ .*?\| ([\d.]+) "
    names = ("learned table", "sinusoidal", "rotary")
    found = {name: [float(x) for x in documented("experiments/03-positions.md", row.format(name))] for name in names}
    (learned, learned_beyond), (sines, sines_beyond) = found["learned table"], found["sinusoidal"]
    assert abs(learned - sines) < 0.01 and max(learned_beyond, sines_beyond) < 0.2
    return Table(["positions", "right within 32", "right beyond 32"], [[name, *pair] for name, pair in found.items()])


@item("002-3-02", kind="formula", wrong={"shift": 1})
def table_is_one_hot_product(shift: int = 0) -> Table:
    """What a learned table adds to the token at p is its row p: the product of a one-hot vector of p with the table.

    The slide writes a position as M x 1; it has E numbers, one for each feature, and the table is M x E.
    """
    model = af.build("gpt2-tiny").eval()
    table, words = (get(model, "decoder").detach() for get in (inside.positions, inside.words))
    assert table.shape == (128, 64)  # M x E
    with af.look(model, "decoder.input") as seen, torch.no_grad():
        model(input_ids=IDS)
    one_hot = F.one_hot(torch.arange(5) + shift, 128).float()  # [tokens, M]
    assert torch.equal(one_hot @ table, table[shift : shift + 5])
    assert torch.allclose(seen["decoder.input"][0] - words[IDS[0]], one_hot @ table, atol=1e-6)
    return Table(["what", "shape"], [["one-hot positions", "5 x 128"], ["table", "128 x 64"], ["one position", "64"]])


@item("002-3-03", kind="claim", holds="partly")
def parameter_takes_a_tensor() -> str:
    """A learned table is `nn.Embedding(M, E)`, or an `nn.Parameter` made from a tensor.

    The slide's `nn.Parameter(max_pos, model_dim)` is no valid call.
    """
    try:
        nn.Parameter(10, 4)  # type: ignore[arg-type]
    except (AttributeError, TypeError) as error:
        said = f"nn.Parameter(10, 4): {type(error).__name__}"
    else:
        raise AssertionError("nn.Parameter took two numbers")
    assert nn.Parameter(torch.empty(10, 4)).shape == nn.Embedding(10, 4).weight.shape
    return said


@item("002-3-04", kind="claim")
def largest_position() -> str:
    """M, the number of rows of the table, is the longest input that a model with learned positions takes."""
    model = af.build("gpt2-tiny").eval()  # 128 positions
    assert model(input_ids=torch.ones(1, 128, dtype=torch.long)).logits.shape[1] == 128
    said = refusal(lambda: model(input_ids=torch.ones(1, 129, dtype=torch.long)))
    assert "128" in said
    return said


@item("002-3-05", kind="mechanism", wrong={"swapped": True})
def two_axes(swapped: bool = False) -> Any:
    """For images each axis has a table of half the width, and a patch gets both halves side by side.

    One half depends on the column alone, the other on the row alone; the width must be even, and another is refused.
    """
    encoding = af.positions.sinusoids_2d(3, 4, 16).view(3, 4, 16)  # rows, columns, features
    if swapped:
        encoding = encoding.flip(-1)
    first, second = encoding[..., :8], encoding[..., 8:]
    assert torch.equal(first[0], first[2])  # the same in every row: it encodes the column
    assert torch.equal(second[:, 0], second[:, 3])  # the same in every column: it encodes the row
    said = refusal(lambda: af.build("vit-tiny", positions="learned-2d", d_model=65, n_heads=5))
    titles = ["first half, by column", "second half, by row"]
    return [heatmap([first[0].abs(), second[:, 0].abs()], titles, ("feature", "index")), said]


section("002-4", "The encoder block")  # whose items are those of other decks
section("002-5", "Encoder and decoder")  # whose items are those of other decks
section("002-6", "Decoders")


@item("002-6-01", kind="claim")
def in_turn_or_at_once() -> Table:
    """A decoder writes one token after the other, or everything at once from learned queries.

    Translation needs a pass for each token. DETR's object queries need one pass for all boxes.
    """
    translator, detector = af.build("transformer-tiny").eval(), af.build("detr-tiny").eval()
    passes: list[str] = []
    translator.stages["decoder"].register_forward_hook(lambda *_: passes.append("translation"))
    detector.stages["decoder"].register_forward_hook(lambda *_: passes.append("detection"))
    with torch.no_grad():
        ids = translator.generate(input_ids=IDS, max_new_tokens=6, eos_token_id=None)[0, 1:]
        boxes = detector(pixel_values=torch.randn(1, 3, 64, 64)).pred_boxes[0]
    rows = [
        ["translation", len(ids), passes.count("translation")],
        ["detection", len(boxes), passes.count("detection")],
    ]
    assert rows == [["translation", 6, 6], ["detection", 10, 1]]
    return Table(["task", "outputs", "passes of the decoder"], rows)


@item("002-6-02", kind="claim", cost="slow", also=("003-1-04",))
def stops_by_itself() -> Table:
    """Where the length of the output is unknown, the decoder goes on until it writes the end token."""
    translate = shipped("translate", "en-de")
    rows = []
    for text in ("A dog runs.", "Two young women are sitting on a bench in the park."):
        ids = torch.tensor([translate.tokenizer.encode(text)])
        out = translate.model.generate(input_ids=ids, max_new_tokens=60)[0].tolist()
        assert out[-1] == translate.model.config.end and len(out) < 60
        rows.append([text, str(translate(text)), len(out) - 1])
    return Table(["source", "translation", "tokens with the end token"], rows)


@item("002-6-03", kind="claim", cost="slow", beside="python experiments/11_decoding.py")
def known_number() -> Any:
    """Where the number of outputs is known, all come at once: 68 landmarks of a face in one pass.

    The brows are above the eyes, these above the nose, the mouth and the jaw, and left is left. Documented run: decoded
    all at once the error is smaller than one after another, and it takes 1/27 of the time.
    """
    pose, passes = shipped("pose"), []
    pose.model.stages["decoder"].register_forward_hook(lambda *_: passes.append(1))
    answer = pose(given("face.jpg"))
    points = dict(zip(answer.names, torch.tensor(answer.persons[0])[:, :2], strict=True))
    assert len(points) == 68 and len(passes) == 1
    center = {
        part: torch.stack([point for name, point in points.items() if part in name]).mean(0).tolist()
        for part in ("right_brow", "left_brow", "right_eye", "left_eye", "nostril", "lip", "jaw_middle")
    }
    heights = [center[part][1] for part in ("right_brow", "right_eye", "nostril", "lip", "jaw_middle")]
    assert all(lower - upper > 5 for upper, lower in itertools.pairwise(heights))  # pixels, downwards
    eyes = center["left_eye"][0] - center["right_eye"][0]
    assert eyes > 40 and center["right_eye"][0] < center["nostril"][0] < center["left_eye"][0]
    assert 0.8 < (heights[4] - heights[1]) / eyes < 3
    page, row = "experiments/11-decoding.md", r"\| {} \| [\d,]+ \| ([\d.]+) ± [\d.]+ \|[^|]*\| ([\d.]+) ±"
    at_once, in_turn = ([float(x) for x in documented(page, row.format(name))] for name in ("all at once", "in turn"))
    assert at_once[0] == 0.835 and in_turn[0] == 1.08 and 26 < in_turn[1] / at_once[1] < 28
    drawn, axes = figure(3.4, 3.4)
    axes.imshow(answer.draw())
    axes.set_axis_off()
    rows = [["all at once", *at_once], ["in turn", *in_turn]]
    return [Table(["landmarks", "error, of the mean face's", "ms an image"], rows), drawn]


section("002-7", "Queries, keys and values")


@item("002-7-03", kind="claim")
def who_asks_who_offers() -> Table:
    """A query asks, a key offers, and a value is what is passed on: weights depend on queries and keys alone.

    Other values change the output and leave the weights as they are.
    """
    query, key, value, other = (torch.randn(1, 1, 4, 8) for _ in range(4))
    weights = af.attention_weights(query, key)
    assert torch.allclose(af.attend(query, key, value), weights @ value, atol=1e-6)
    assert torch.allclose(af.attend(query, key, other), weights @ other, atol=1e-6)
    assert not torch.allclose(af.attend(query, key, value), af.attend(query, value, key), atol=1e-2)  # roles matter
    return Table([f"key {i}" for i in range(4)], weights[0, 0].tolist(), "weights, a row a query")


section("002-8", "Heads")


@item("002-8-02", kind="claim", cost="slow", holds="partly")
def heads_differ() -> Table:
    """Heads of a layer look at different things: their maps are far from equal, and far from unrelated.

    The claim "each head is an expert in another field" holds partly: the mean cosine between the maps of two heads
    is 0.5 to 0.9 in MiniLM.
    """
    embed = shipped("embed", "minilm")
    ids = torch.tensor([embed.tokenizer.encode("The animal didn't cross the street because it was too tired.")])
    with af.look(embed.model, "*.self.weights") as seen, torch.no_grad():
        embed.model(input_ids=ids)
    rows = []
    for layer, weights in enumerate(seen.values()):
        maps = F.normalize(weights[0].flatten(1), dim=-1)  # [heads, queries * keys]
        cosines = maps @ maps.T
        heads = len(maps)
        rows.append([layer, float((cosines.sum() - heads) / (heads * (heads - 1)))])
    assert all(0.3 < mean < 0.95 for _, mean in rows)
    return Table(["layer", "mean cosine between two heads"], rows)


section("002-9", "Residual connections")


@item("002-9-01", kind="claim")
def two_residuals() -> Table:
    """An encoder block has two residual connections: around self-attention and around the feed-forward part.

    With both parts silenced, what is left of a pre-norm block is its input.
    """
    model = af.build("gpt2-tiny").eval()
    for part in ("self", "feedforward"):
        (matrix,) = inside.output_maps(model, part, block=0)
        matrix.zero_()  # a fresh model's biases are zero
    with af.look(model, "decoder.input", "decoder.blocks.0.output") as seen, torch.no_grad():
        model(input_ids=IDS)
    assert torch.equal(seen["decoder.input"], seen["decoder.blocks.0.output"])
    parts = sorted({point.split(".")[3] for point in af.build("bert-tiny").points if "blocks.0." in point} - {"output"})
    assert parts == ["feedforward", "self"]
    return Table(["part of an encoder block", "residual"], [[part, "input + part(input)"] for part in parts])


@item("002-9-02", kind="claim", cost="slow")
def positions_are_carried() -> Table:
    """Residual connections carry the positions up: a linear probe finds the position of a token after every block.

    In what attention alone gives, before it is added to its input, the probe of a fresh model finds hardly any.
    """
    model = af.build("bert-tiny", head="base", n_layers=4).eval()
    ids = torch.randint(5, 250, (300, 16))
    with af.look(model, "encoder.blocks.*.output") as seen, torch.no_grad():
        model(input_ids=ids)

    def found(hidden: Tensor) -> float:
        features = torch.cat([hidden, torch.ones(300, 16, 1)], dim=-1)
        train, test = features[:200].flatten(0, 1), features[200:].flatten(0, 1)
        probe = torch.linalg.lstsq(train, torch.eye(16).repeat(200, 1)).solution
        return float((test @ probe).argmax(-1).eq(torch.arange(16).repeat(100)).float().mean())

    rows = [[i, *(found(seen[f"encoder.blocks.{i}.{name}"]) for name in ("output", "self.output"))] for i in range(4)]
    assert all(after > 0.8 and alone < 0.2 for _, after, alone in rows)  # by chance 1/16
    return Table(["block", "positions found after it", "in attention's part alone"], rows)


section("002-10", "Masks")


@item("002-10-01", kind="claim")
def training_in_one_pass() -> Table:
    """A causal mask lets a model learn every next token of a text in one pass.

    The loss of the whole text is the mean of the losses of its prefixes, one by one.
    """
    model = af.build("gpt2-tiny").double().eval()
    ids = torch.randint(5, 250, (1, 8))
    together = model(input_ids=ids, labels=ids).loss
    alone = [F.cross_entropy(model(input_ids=ids[:, :n]).logits[0, -1], ids[0, n]) for n in range(1, 8)]
    assert torch.allclose(together.double(), torch.stack(alone).mean(), atol=1e-6)
    return Table(["prefix", "loss of the next token"], [[n, float(loss)] for n, loss in enumerate(alone, start=1)])


@item("002-10-02", kind="claim", holds="no")
def masks_are_added() -> Table:
    """A mask is added to the scores as -inf, before the softmax; the slide multiplies by it.

    A product with -inf gives +inf for negative scores and NaN for zeros. The sum gives weights of exactly zero.
    """
    scores = torch.tensor([[1.0, -2.0, 0.0]])
    mask = torch.tensor([[0.0, -math.inf, -math.inf]])
    added, multiplied = torch.softmax(scores + mask, -1), torch.softmax(scores * mask, -1)
    assert added.tolist() == [[1.0, 0.0, 0.0]]
    assert bool(multiplied.isnan().any())
    return Table(
        ["", "key 0", "key 1", "key 2"], [["added", *added[0].tolist()], ["multiplied", *multiplied[0].tolist()]]
    )


@item("002-10-04", kind="claim")
def other_masks() -> Any:
    """Causal is one mask of many: windows, dilated windows, neighborhoods of an image, prefixes, and combinations."""
    masks = {
        "causal": af.masks.Causal(),
        "window": af.masks.Window(2, 2),
        "causal window": af.masks.Causal() & af.masks.Window(3, 0),
        "prefix": af.masks.Causal() | af.masks.Prefix(4),
    }
    grids = [mask.dense(9, 9, 0, torch.device("cpu")).reshape(9, 9) for mask in masks.values()]
    assert torch.equal(grids[0], torch.ones(9, 9).tril().bool())
    assert torch.equal(grids[2], grids[0] & torch.ones(9, 9).triu(-3).bool())
    assert bool(grids[3][0, 3]) and not bool(grids[0][0, 3])  # the prefix is seen by all
    return heatmap(grids, list(masks), size=2.1)


section("002-11", "Padding")


@item("002-11-01", kind="mechanism", also=("004-14-02",), wrong={"attend_to_padding": True})
def padded_batches(attend_to_padding: bool = False) -> Table:
    """Texts of a batch are padded to one length; the attention mask says which tokens are real.

    Padding then changes nothing: a row of the batch gives the same numbers as the text alone.
    """
    tokenizer = af.Tokenizer.train(iter(TEXTS * 5), kind="word", vocab_size=60, progress=False)
    batch = tokenizer(TEXTS)
    if attend_to_padding:
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    model = af.build("bert-tiny", head="base").eval()
    together = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    ids = tokenizer.encode(TEXTS[1])
    alone = model(input_ids=torch.tensor([ids])).last_hidden_state
    assert torch.allclose(together[1, : len(ids)], alone[0], atol=1e-5)
    return Table(
        ["text", "input_ids", "attention_mask"],
        [
            [text, ids.tolist(), mask.tolist()]
            for text, ids, mask in zip(TEXTS, batch["input_ids"], batch["attention_mask"], strict=True)
        ],
    )


TEXTS = ["the cat sat on the mat", "the cat sat"]


@item("002-11-02", kind="table")
def padding_table() -> list[Table]:
    """The key padding mask of four rows with 4, 6, 3 and 5 real tokens, in PyTorch's convention: True is padding.

    A tokenizer that makes a batch of four texts gives its opposite, the attention mask; no token looks at padding.
    """
    rows = ("the cat sat still", "the cat sat on the mat", "the cat sat", "a dog sat there too")
    tokenizer = af.Tokenizer.train(iter(rows * 5), kind="word", vocab_size=60, progress=False)
    batch = tokenizer(rows)
    padding = batch["attention_mask"] == 0  # [4, 6]
    assert padding.tolist() == [[i >= n for i in range(6)] for n in (4, 6, 3, 5)]
    model = af.build("bert-tiny", head="base").eval()
    with af.look(model, "encoder.blocks.0.self.weights") as seen, torch.no_grad():
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    weights = seen["encoder.blocks.0.self.weights"]  # [4, heads, queries, keys]
    asked = padding[:, None, None].expand_as(weights)
    assert bool((weights[asked] == 0).all()) and float(weights[:, :, 0][~asked[:, :, 0]].min()) > 0
    table = Table([f"token {i}" for i in range(6)], padding.tolist(), "key_padding_mask")
    head = [f"token {i}" for i in range(6)]
    return [table, Table(head, weights[:, 0, 0].tolist(), "weights of the first token of each row, first head")]


@item("002-11-03", kind="claim")
def opposite_conventions() -> Table:
    """PyTorch's `key_padding_mask` is True at padding; Hugging Face's `attention_mask` is 1 at real tokens.

    `nn.MultiheadAttention` with one and `af.attend` with the other give equal numbers.
    """
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    attention_mask = torch.arange(5) < torch.tensor([[5], [3]])
    wanted = theirs(x, x, x, key_padding_mask=~attention_mask, need_weights=False)[0]
    query, key, value = (
        F.linear(x, theirs.in_proj_weight, theirs.in_proj_bias).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    )
    mixed = af.attend(query, key, value, af.masks.Padding(attention_mask)).transpose(1, 2).flatten(2)
    assert torch.allclose(theirs.out_proj(mixed), wanted, atol=1e-6)
    return Table(
        ["library", "argument", "a real token is"],
        [
            ["torch.nn.MultiheadAttention", "key_padding_mask", "False"],
            ["transformers, anyformer", "attention_mask", "1"],
        ],
    )


section("002-12", "BERT")  # whose items are those of other decks
section("002-13", "MAE")


@item("002-13-01", kind="system", cost="slow")
def mae_reconstructs() -> Any:
    """MAE (He et al. 2021): three quarters of the patches are hidden, and a transformer paints them from the rest.

    A network that has learned nothing would be off by the variance of the pixels, 1 in each normalized patch.
    """
    answer = shipped("reconstruct")(given("ship.jpg"))
    assert (answer.hidden, answer.patches) == (48, 64)
    assert answer.error < 0.2
    drawn, axes = figure(7, 3)
    axes.imshow(answer.draw())
    axes.set_axis_off()
    return [str(answer), drawn]


@item("002-13-02", kind="mechanism", wrong={"mask_ratio": 0.5})
def mae_encoder_sees_a_quarter(mask_ratio: float = 0.75) -> Table:
    """MAE's encoder reads the visible quarter of the patches alone; its decoder has all positions."""
    model = af.build("mae-tiny", mask_ratio=mask_ratio).eval()  # 16 patches of a 32 x 32 image, and a class token
    with af.look(model, "encoder.output", "decoder.output") as seen, torch.no_grad():
        out = model(pixel_values=torch.randn(2, 3, 32, 32))
    shapes = {name: list(x.shape) for name, x in seen.items()}
    assert shapes == {"encoder.output": [2, 5, 64], "decoder.output": [2, 17, 32]}
    assert float(out.mask.mean()) == 0.75
    return Table(["where", "shape: images, tokens, features"], list(shapes.items()))


@item("002-13-03", kind="claim")
def like_masked_words() -> Table:
    """MAE is to images what masked words are to texts: in both, the loss counts the hidden positions alone.

    MAE hides 75% of the patches, BERT 15% of the words: neighboring pixels tell more than neighboring words.
    """
    model, pixels = af.build("mae-tiny").eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        out = model(pixel_values=pixels)
    patches = (
        pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).reshape(2, 16, -1)
    )  # as the model has them
    errors, patch_hidden = (out.logits - patches).square().mean(-1), out.mask.bool()  # [2, 16]
    ids = torch.randint(5, 250, (20, 100))
    masking = af.objectives.Masking(mask_id=4, vocab_size=256)
    made = af.objectives.mask_tokens(ids, torch.zeros_like(ids).bool(), masking, torch.Generator().manual_seed(0))
    with torch.no_grad():
        bert = af.build("bert-tiny", head="masked").eval()(**made)
    surprise, word_hidden = F.cross_entropy(bert.logits.mT, ids, reduction="none"), made["labels"] != -100
    rows = []
    for name, loss, each, hidden in (
        ("MAE", out.loss, errors, patch_hidden),
        ("BERT", bert.loss, surprise, word_hidden),
    ):
        assert torch.allclose(each[hidden].mean(), loss, rtol=1e-4)
        assert not torch.allclose(each.mean(), loss, rtol=1e-4)
        rows.append([name, float(hidden.float().mean()), float(loss), float(each.mean())])
    assert rows[0][1] == 0.75 and abs(rows[1][1] - 0.15) < 0.02
    return Table(["", "share hidden", "loss: mean of the hidden", "mean of all"], rows)


@item("002-13-04", kind="claim", documented="python benchmarks/results.py mae-chain vit-tenth")
def mae_pretraining_helps() -> Table:
    """Pre-trained by MAE, a ViT learns more from few labels: CIFAR-10 with 10% of its labels (documented run)."""
    with_it, without = documented("results.md", r"reaches ([\d.]+)%, the same network from nothing ([\d.]+)%")
    assert float(with_it) - float(without) > 10
    return Table(["", "accuracy, %"], [["after MAE", with_it], ["from scratch", without]])


section("002-14", "DETR")


@item("002-14-01", kind="system", cost="slow")
def detr_finds_cells() -> Any:
    """DETR (Carion et al. 2020): a CNN, an encoder, and a decoder whose learned queries become boxes, all at once.

    On the image of blood cells: one white cell, about twenty red ones, a few platelets. No two boxes lie on each other.
    """
    detect = shipped("detect")
    with Image.open(given("cells.jpg")) as image, torch.no_grad():
        batch, (width, height) = detect.processor([image.convert("RGB")]), image.size
        out = detect.model(**batch)
    assert out.logits.shape == (1, 100, len(detect.labels) + 1) and out.pred_boxes.shape == (1, 100, 4)
    answer = detect(given("cells.jpg"))
    lines = [line.split() for line in str(answer).splitlines()]  # "WBC 1.00 at 376, 166, 606, 392"
    counts = {name: sum(line[0] == name for line in lines) for name in ("WBC", "RBC", "Platelets")}
    assert counts["WBC"] == 1 and 15 <= counts["RBC"] <= 25 and 2 <= counts["Platelets"] <= 6
    boxes = torch.tensor([[float(x.strip(",")) for x in line[3:]] for line in lines])  # left, top, right, bottom
    assert bool((boxes >= 0).all()) and bool((boxes <= torch.tensor([width, height, width, height])).all())
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    both = (torch.minimum(boxes[:, None, 2:], boxes[:, 2:]) - torch.maximum(boxes[:, None, :2], boxes[:, :2])).clamp(
        min=0
    )
    overlap = both.prod(-1) / torch.minimum(sizes[:, None], sizes) - torch.eye(len(boxes))
    assert float(overlap.max()) < 0.8
    drawn, axes = figure(4, 3)
    axes.imshow(answer.draw())
    axes.set_axis_off()
    return [Table(["cells", "found"], list(counts.items())), drawn]


@item("002-14-02", kind="mechanism", wrong={"greedy": True})
def bipartite_matching(greedy: bool = False) -> Table:
    """Queries and objects are matched one to one so that the total cost is smallest.

    Here the cost of a pair is 5 |box - box'| + 2 (1 - GIoU), and the loss of the boxes is the smallest total of all
    360 matchings of 6 queries with 4 objects. It does not depend on the order of the objects. Each object in turn with
    the query that is cheapest for it would cost more.
    """
    model = af.build("detr-tiny", n_queries=6, class_cost=0.0).eval()
    pixels, boxes, classes = torch.randn(8, 3, 64, 64), torch.rand(8, 4, 4) * 0.5 + 0.2, torch.tensor([0, 1, 2, 0])
    rows, losses = [], []
    for order in (torch.arange(4), torch.tensor([2, 0, 3, 1])):
        labels = [{"class_labels": classes[order], "boxes": objects[order]} for objects in boxes]
        with torch.no_grad():
            out = model(pixel_values=pixels, labels=labels)
        losses.append(4 * float(5 * out.loss_dict["loss_bbox"] + 2 * out.loss_dict["loss_giou"]))  # 4 objects an image
    found, wanted = out.pred_boxes[:, :, None], boxes[:, None]
    costs = 5 * (found - wanted).abs().sum(-1) + 2 * (1 - _generalized_iou(found, wanted))  # [images, queries, objects]
    for image, cost in enumerate(costs):
        totals = [float(cost[list(each), range(4)].sum()) for each in itertools.permutations(range(6), 4)]
        rows.append([image, min(totals), _one_after_another(cost), max(totals)])
    _, best, in_turn, _ = (sum(column) / 8 for column in zip(*rows, strict=True))
    assert in_turn > 1.001 * best
    for loss in losses:
        assert math.isclose(loss, in_turn if greedy else best, rel_tol=1e-4)
    head = ["image", "smallest of all 360 totals", "each object in turn", "largest"]
    return Table(head, rows, f"mean of the loss {losses[0]:.4f}, of the smallest {best:.4f}")


def _generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Of boxes as center x, center y, width, height (Rezatofighi et al. 2019)."""
    low, high = [x[..., :2] - x[..., 2:] / 2 for x in (a, b)], [x[..., :2] + x[..., 2:] / 2 for x in (a, b)]
    both = (torch.minimum(*high) - torch.maximum(*low)).clamp(min=0).prod(-1)
    either = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both
    around = (torch.maximum(*high) - torch.minimum(*low)).prod(-1)
    return both / either - (around - either) / around


def _one_after_another(cost: Tensor) -> float:
    """The total if each object takes the cheapest query that is left."""
    left, total = cost.clone(), 0.0
    for one in range(cost.shape[1]):
        query = int(left[:, one].argmin())
        total += float(left[query, one])
        left[query] = math.inf
    return total


section("002-15", "DETR beside Faster R-CNN")


PUBLISHED = [  # Carion et al. 2020, table 1: GFLOPS, FPS, millions of parameters, AP, AP50, AP75, APS, APM, APL
    ["Faster R-CNN-DC5", 320, 16, 166, 39.0, 60.5, 42.3, 21.4, 43.5, 52.5],
    ["Faster R-CNN-FPN", 180, 26, 42, 40.2, 61.0, 43.8, 24.2, 43.5, 52.0],
    ["Faster R-CNN-R101-FPN", 246, 20, 60, 42.0, 62.5, 45.9, 25.2, 45.6, 54.6],
    ["Faster R-CNN-DC5+", 320, 16, 166, 41.1, 61.4, 44.3, 22.9, 45.9, 55.0],
    ["Faster R-CNN-FPN+", 180, 26, 42, 42.0, 62.1, 45.5, 26.6, 45.4, 53.4],
    ["Faster R-CNN-R101-FPN+", 246, 20, 60, 44.0, 63.9, 47.8, 27.2, 48.1, 56.0],
    ["DETR", 86, 28, 41, 42.0, 62.4, 44.2, 20.5, 45.8, 61.1],
    ["DETR-DC5", 187, 12, 41, 43.3, 63.1, 45.9, 22.5, 47.3, 61.1],
    ["DETR-R101", 152, 20, 60, 43.5, 63.8, 46.4, 21.9, 48.0, 61.8],
    ["DETR-DC5-R101", 253, 10, 60, 44.9, 64.7, 47.7, 23.7, 49.5, 62.3],
]
HEAD = ["model", "GFLOPS", "FPS", "M", "AP", "AP50", "AP75", "APS", "APM", "APL"]

unavailable(
    "002-15-01",
    "Faster R-CNN beside DETR: the three rows of the published table, evaluated by the same metric",
    kind="table",
    why="COCO in full and trained Faster R-CNN weights cannot be had here; the published rows stand under 002-15-05",
)
unavailable(
    "002-15-02",
    "Faster R-CNN+ with longer training: three published rows, evaluated by the same metric",
    kind="table",
    why="COCO in full and trained Faster R-CNN weights cannot be had here; the published rows stand under 002-15-05",
)


def _parameters(recipe: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in af.build(recipe).parameters())


@item(
    "002-15-03",
    kind="table",
    cost="slow",
    partly="AP needs COCO in full and published weights, which cannot be had here",
)
def detr_parameters() -> Table:
    """DETR with a ResNet-50 has 41 M parameters, with and without a dilated last stage."""
    counted = {name: _parameters(name) for name in ("detr-r50", "detr-r50-dc5")}
    assert set(counted.values()) == {41_524_768}
    return Table(["recipe", "parameters"], list(counted.items()))


@item(
    "002-15-04",
    kind="table",
    cost="slow",
    partly="AP needs COCO in full and published weights, which cannot be had here",
)
def detr_101_parameters() -> Table:
    """DETR with a ResNet-101 has 60 M parameters."""
    counted = {name: _parameters(name) for name in ("detr-r101", "detr-r101-dc5")}
    assert set(counted.values()) == {60_464_672}
    return Table(["recipe", "parameters"], list(counted.items()))


@item("002-15-05", kind="claim", partly="checked on the published table; only the parameters of DETR are counted here")
def detr_beside_faster_rcnn() -> Table:
    """DETR reaches the AP of Faster R-CNN with fewer parameters; it is better on large objects, worse on small ones."""
    by_name = {row[0]: dict(zip(HEAD, row, strict=True)) for row in PUBLISHED}
    detr, rivals = by_name["DETR"], [row for name, row in by_name.items() if name.startswith("Faster")]
    assert detr["AP"] == by_name["Faster R-CNN-FPN+"]["AP"] and detr["M"] < by_name["Faster R-CNN-FPN+"]["M"]
    assert detr["APL"] > max(row["APL"] for row in rivals) and detr["APS"] < min(row["APS"] for row in rivals)
    return Table(HEAD, PUBLISHED, "Carion et al. 2020, table 1")


section("002-16", "What DETR's queries look for")


@item("002-16-01", kind="figure", cost="slow", partly="drawn for blood cells, since COCO in full cannot be had")
def slots_of_queries() -> Any:
    """Each object query has places and sizes of its own: boxes of some queries over many images.

    Green are small boxes, red wide ones, blue tall ones, as in the paper's figure 7. The images are pieces of one, half
    of them mirrored. Which query it is tells more of where a box lies than the image does; and yet the boxes that the
    model is sure of are where the cells are: in a mirrored image they are mirrored, found by other queries.
    """
    detect, images = shipped("detect"), []
    with Image.open(given("cells.jpg")) as image:
        for left, top in torch.randint(0, 160, (6, 2)).tolist():
            piece = image.crop((left, top, left + 480, top + 320))
            images += [piece, piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    with torch.no_grad():
        out = detect.model(**detect.processor(images))
    boxes = out.pred_boxes  # [images, queries, 4]: center x, center y, width, height
    assert boxes.shape == (12, 100, 4) and bool(((boxes >= 0) & (boxes <= 1)).all())
    centers = boxes[..., :2]
    assert float(centers.mean(0).var(0).mean()) > 10 * float(centers.var(0).mean())  # between queries, between images
    sure, again = out.logits.softmax(-1)[..., :-1].amax(-1) > 0.9, []  # the last class is "no object"
    assert 5 < float(sure.sum(1).float().mean()) < 40
    for plain in range(0, 12, 2):
        mirrored = boxes[plain + 1, sure[plain + 1]] * torch.tensor([-1, 1, 1, 1]) + torch.tensor([1, 0, 0, 0])
        again.append((torch.cdist(boxes[plain, sure[plain]], mirrored, p=1).amin(1) < 0.1).float())
    assert float(torch.cat(again).mean()) > 0.8
    told = f"{float(torch.cat(again).mean()):.0%} of the boxes that it is sure of are in the mirrored image, too"
    return [told, af.plot.query_boxes(boxes, n=20)]


@item("002-16-02", kind="claim", cost="slow", documented="python experiments/11_decoding.py")
def slots_specialize() -> Table:
    """Queries specialize in places and sizes (documented run on blood cells).

    The paper's other finding, a mode for image-wide boxes in nearly all slots, does not show: blood cells are small.
    """
    page = "experiments/11-decoding.md"
    centers, sizes = (documented(page, rf"variance of their {what} .*?\| ([\d.]+)")[0] for what in ("middles", "sizes"))
    assert float(centers) > 0.9 and float(sizes) > 0.2
    return Table(["variance explained by the query", ""], [["of the centers", centers], ["of the sizes", sizes]])


section("002-17", "ViT")  # whose items are those of other decks
