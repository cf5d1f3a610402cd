"""Deck 003, "Lecture 7: attention and Transformers". Items in page order.

The deck's letters: x and y tokens, h states of the encoder, s states of the decoder, c contexts, z features of an
image, e scores, a weights. Its matrices of weights have inputs as rows and outputs as columns; here, as everywhere in
this library, a row belongs to a query.
"""

from __future__ import annotations

import functools
import gzip
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af

from . import inside
from .item import Table, item, missing, section, unavailable
from .run import data
from .show import documented, figure, given, heatmap, shipped

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])  # 7 tokens
WORDS = torch.tensor([[0, 5, 6]])  # the start token and 2 words
SENTENCE = "The agreement on the European Economic Area was signed in August 1992."
FRENCH = "L'accord sur la zone économique européenne a été signé en août 1992."


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


section("003-1", "Sequence to sequence with RNNs")


@item(
    "003-1-01",
    kind="example",
    cost="slow",
    partly="English to Italian: pairs of these two languages cannot be had here, so French and German stand in",
)
def translation() -> Table:
    """Machine translation: a sentence of one language goes in, and one of another comes out."""
    text = "I have a black cat."
    rows = [[name, str(shipped("translate", name)(text))] for name in ("en-fr", "en-de")]
    assert "chat noir" in rows[0][1] and "Katze" in rows[1][1]
    return Table(["model", text], rows)


@item("003-1-02", kind="formula", wrong={"from_encoder": False})
def encoder_and_decoder(from_encoder: bool = True) -> Table:
    """h_t = f(x_t, h_{t-1}) reads, s_t = g(y_{t-1}, s_{t-1}, c) writes; s_0 and c are the encoder's last state.

    The two LSTMs of the model, called by hand, give what the model gives.
    """
    model = af.build("sutskever-tiny", context_every_step=True, reverse=False).eval()
    with af.look(model, "encoder.input", "decoder.input", "decoder.output") as seen, torch.no_grad():
        model(input_ids=SOURCE, decoder_input_ids=WORDS)
        read, write = inside.rnns(model)
        h, last = read(seen["encoder.input"])  # [1, 7, 48], and the last state of each layer
        c = h[:, -1:].expand(-1, 3, -1)  # c = h_T, the same at every step
        s, _ = write(torch.cat([seen["decoder.input"], c], dim=-1), last if from_encoder else None)
    assert torch.allclose(s, seen["decoder.output"], atol=1e-5)
    return Table(["", "shape"], [["h", list(h.shape)], ["c", list(h[:, -1].shape)], ["s", list(s.shape)]])


@item("003-1-03", kind="mechanism", wrong={"shift": 0})
def teacher_forcing(shift: int = 1) -> Table:
    """Teacher forcing: in training the decoder reads the right words, moved by one, even where it would err.

    Given labels alone, the model moves them itself; the loss is that of the decoder that reads the start token and
    then all words but the last.
    """
    model = af.build("sutskever-tiny").eval()
    words = torch.tensor([[5, 6, 7, 1]])  # the last is the end token
    read = torch.tensor([[0, 5, 6, 7, 1]])[:, 1 - shift : 5 - shift]
    with torch.no_grad():
        loss = model(input_ids=SOURCE, labels=words).loss
        logits = model(input_ids=SOURCE, decoder_input_ids=read).logits  # [1, 4, vocabulary]
    assert torch.allclose(F.cross_entropy(logits[0], words[0]), loss, atol=1e-5)
    return Table(
        ["step", "reads", "must say"],
        [[t, int(a), int(b)] for t, (a, b) in enumerate(zip(read[0], words[0], strict=True))],
    )


@item("003-1-05", kind="formula", cost="slow", wrong={"n_layers": 2})
def sutskever(n_layers: int = 4) -> Table:
    """c = q(h_1, ..., h_T): Sutskever et al. (2014) take an LSTM and its last state, with 384 M parameters."""
    with torch.device("meta"):
        model = af.build("sutskever-384m", n_layers=n_layers).eval()
    count = sum(p.numel() for p in model.parameters())
    assert count == 384_144_000 and model.config.d_hidden == 1000
    return Table(["layers", "width", "parameters"], [[n_layers, 1000, f"{count:,}"]])


@item(
    "003-1-06",
    kind="claim",
    also=("004-1-01", "004-2-03"),
    documented="python experiments/04_bottleneck.py",
)
def bottleneck() -> Table:
    """Everything must fit into one vector: without attention BLEU falls with the length, with it it does not.

    Documented run: English number words into German ones.
    """
    row = r"\| {} \| [\d,]+ \| ([\d.]+) .*?\| ([\d.]+) .*?\| ([\d.]+) "
    names = {"one vector": r"RNN, one vector \(Sutskever\)", "attention": "Bahdanau"}
    page = "experiments/04-bottleneck.md"
    found = {name: [float(x) for x in documented(page, row.format(pattern))] for name, pattern in names.items()}
    assert found["one vector"][0] - found["one vector"][2] > 30
    assert abs(found["attention"][0] - found["attention"][2]) < 1
    return Table(["BLEU", "5 to 8 words", "9 to 12", "13 to 20"], [[name, *values] for name, values in found.items()])


section("003-2", "RNNs with attention")


@item("003-2-01", kind="formula", wrong={"squash": torch.sigmoid})
def additive_score(squash: Any = torch.tanh) -> Table:
    """e_ij = a(s_{i-1}, h_j), where a is a small network learned with the rest: v · tanh(W s + U h)."""
    score = af.scores.AdditiveScore(6, 8, 5).double()  # widths of s, of h and of the hidden layer
    s, h = _normal(1, 1, 3, 6), _normal(1, 1, 4, 8)
    scores = score(s, h)[0, 0]  # [3, 4]
    w, u, v = score.query, score.key, score.value
    for i in range(3):
        for j in range(4):
            assert torch.allclose(v @ squash(w @ s[0, 0, i] + u @ h[0, 0, j]), scores[i, j], atol=1e-12)
    return Table([f"h_{j + 1}" for j in range(4)], scores.tolist(), "e, a row for each state of the decoder")


@item("003-2-02", kind="formula", also=("003-23-01", "004-1-02", "004-1-03"), wrong={"axis": -2})
def weights_of_the_source(axis: int = -1) -> Any:
    """a_ij = softmax over j of e_ij: for each word written, a distribution over the words read."""
    model = af.build("bahdanau-tiny").eval()
    with af.look(model, "encoder.output", "*.cross.weights") as seen, torch.no_grad():
        model(input_ids=SOURCE, decoder_input_ids=WORDS)
    h, weights = seen.values()  # [1, T_in, 96], [1, 1, T_out, T_in]
    assert weights.shape == (1, 1, 3, 7) and torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    s0 = inside.first_state(model, h[:, 0, 48:])
    w, u, v = inside.score(model).values()
    e = torch.tanh(s0 @ w.T + h[0] @ u.T) @ v  # the scores of the first word written
    assert torch.allclose(e[None].softmax(axis), weights[0, 0, :1], atol=1e-5)
    return heatmap([weights[0, 0]], ["a fresh model's weights"], ("word read", "word written"), size=3.2)


@item("003-2-03", kind="formula", wrong={"asked_by": 1})
def context_then_state(asked_by: int = 0) -> Table:
    """c_i = Σ_j a_ij h_j and s_i = g(s_{i-1}, y_{i-1}, c_i); the weights of step i come from the state before it.

    Run by hand, the states made from the contexts give back the weights that made the contexts.
    """
    model = af.build("bahdanau-tiny").eval()
    points = ("encoder.output", "decoder.input", "decoder.blocks.0.cross.weights")
    with af.look(model, *points) as seen, torch.no_grad():
        model(input_ids=SOURCE, decoder_input_ids=WORDS)
        h, words, weights = (seen[name] for name in points)  # [1, 7, 96], [1, 3, 32], [1, 1, 3, 7]
        c = weights[0] @ h  # [1, 3, 96]
        s0, (_, write) = inside.first_state(model, h[:, 0, 48:]), inside.rnns(model)
        s, _ = write(torch.cat([words, c], dim=-1), s0[None])
        states = torch.cat([s0[:, None], s], dim=1)[:, asked_by : 3 + asked_by]
        score = af.scores.AdditiveScore(48, 96, 48)
        score.load_state_dict(inside.score(model))
        again = torch.softmax(score(states, h), dim=-1)
    assert torch.allclose(again, weights[0], atol=1e-5)
    return Table(["", "shape"], [["h", list(h.shape)], ["a", list(weights[0].shape)], ["c", list(c.shape)]])


@item("003-2-04", kind="claim")
def annotations_know_the_neighbors() -> Any:
    """Each annotation h_j knows the whole input, and its surroundings best, as the encoder reads in both directions.

    Drawn: the gradient of the middle annotation of a fresh model with respect to each word.
    """
    model = af.build("bahdanau-tiny").eval()
    words = torch.randn(1, 7, model.config.d_model, requires_grad=True)
    with af.look(model, "encoder.output") as seen:
        model(inputs_embeds=words, decoder_input_ids=WORDS)
    (gradient,) = torch.autograd.grad(seen["encoder.output"][0, 3].square().sum(), words)
    sizes = gradient[0].norm(dim=-1)
    assert bool((sizes > 0).all()) and int(sizes.argmax()) == 3
    drawn, axes = figure(4.5, 2.4)
    axes.bar(range(1, 8), sizes)
    axes.set(xlabel="word", ylabel="size of the gradient", title="what h₄ depends on")
    return drawn


@item("003-2-05", kind="claim")
def annotations_are_a_set() -> str:
    """A context treats the annotations as a set: in another order they give the same context."""
    s, h = _normal(1, 1, 1, 6), _normal(1, 1, 7, 6)
    score, order = af.scores.AdditiveScore(6, 6, 5).double(), torch.randperm(7)
    moved = h[:, :, order]
    difference = af.attend(s, h, h, score=score) - af.attend(s, moved, moved, score=score)
    assert float(difference.abs().max()) < 1e-12
    return f"order {order.tolist()}: largest difference of the context {float(difference.abs().max()):.0e}"


@item(
    "003-2-06",
    kind="example",
    cost="slow",
    partly="the shipped model learned from captions and everyday sentences, and does not translate this one rightly",
)
def slide_translation() -> Table:
    """The slide's sentence, English to French, beside the slide's translation.

    The frame of the sentence comes ("a été signé"), the words of a treaty do not.
    """
    ours = str(shipped("translate", "en-fr")(SENTENCE))
    assert "a été signé" in ours
    return Table(["", SENTENCE], [["slide", FRENCH], ["shipped model", ours]])


@item(
    "003-2-07",
    kind="figure",
    cost="slow",
    partly="drawn for a sentence that the shipped model can translate; it cannot translate the slide's",
)
def alignment_matrix() -> Any:
    """The weights as a matrix: a diagonal where words correspond in order, a crossing where they do not."""
    answer = shipped("translate", "en-fr")("The white house is on the hill.", alignment=True)
    looked = [answer.source_tokens[j].strip() for j in answer.alignment.argmax(dim=-1).tolist()]
    found = dict(zip([token.strip() for token in answer.tokens], looked, strict=True))
    assert found["est"] == "is" and found["sur"] == "on"  # in order
    assert found["maison"] == "house" and found["blanche"] == "white"  # crossed
    return af.plot.alignment(answer.alignment, answer.source_tokens, answer.tokens)


@item("003-2-08", kind="claim", cost="slow")
def finds_other_orders() -> Table:
    """Attention finds other word orders by itself: a French adjective after its noun looks at the word before it."""
    translate = shipped("translate", "en-fr")
    rows = []
    for text, noun, adjective in (
        ("She bought a red car.", "voiture", "rouge"),
        ("The white house is on the hill.", "maison", "blanche"),
        ("I have a black cat.", "chat", "noir"),
    ):
        answer = translate(text, alignment=True)
        words = [token.strip() for token in answer.tokens]
        places = answer.alignment.argmax(dim=-1).tolist()
        at_noun, at_adjective = places[words.index(noun)], places[words.index(adjective)]
        assert words.index(adjective) == words.index(noun) + 1 and at_adjective == at_noun - 1
        looked = [answer.source_tokens[j].strip() for j in (at_noun, at_adjective)]
        rows.append([text, str(answer), f"{noun}: {looked[0]}", f"{adjective}: {looked[1]}"])
    return Table(["source", "translation", "noun looks at", "adjective looks at"], rows)


section("003-3", "Captioning from spatial features")

IMAGE_SIZE = 32  # of the tiny captioners


def _images(count: int = 1) -> Tensor:
    return torch.randn(count, 3, IMAGE_SIZE, IMAGE_SIZE) * 5


@item("003-3-01", kind="figure")
def show_and_tell() -> Table:
    """Without attention, the image enters a captioner once: as the first state of the RNN, h_0 = f(z)."""
    model = af.build("show-tell-tiny").eval()
    with torch.no_grad():
        first, second = model(pixel_values=_images(2), decoder_input_ids=WORDS.expand(2, -1)).logits
    (write,) = inside.rnns(model)
    assert first.shape == (3, 256) and not torch.allclose(first, second, atol=1e-4)
    assert write.input_size == model.config.d_model  # a step reads its word, and no features
    return Table(["", "width"], [["a step reads: a word", write.input_size], ["its state", write.hidden_size]])


@item("003-3-02", kind="formula", wrong={"dilation": True})
def grid_of_features(dilation: bool = False) -> Table:
    """A CNN turns an image into a grid z of H x W cells with D features; the slide draws 3 x 3, here it is 4 x 4.

    The strides of its layers multiply: here a cell stands for 8 x 8 pixels, so a larger image has more cells. With
    dilation in place of the last stride it would stand for 4 x 4.
    """
    backbone = af.build("show-attend-tell-tiny").config.backbone.replace(dilation=dilation)
    model, rows = af.build("show-attend-tell-tiny", backbone=backbone).eval(), []
    assert model.config.grid == (4, 4)  # of its usual images
    for size in (IMAGE_SIZE, 2 * IMAGE_SIZE):
        with af.look(model, "encoder.output") as seen, torch.no_grad():
            model(pixel_values=torch.randn(1, 3, size, size), decoder_input_ids=WORDS)
        side, z = size // 8, seen["encoder.output"]
        assert z.shape == (1, side * side, 32)
        rows.append([f"{size} x {size}", f"{side} x {side}", z.shape[-1]])
    return Table(["pixels", "H x W", "D"], rows)


@item("003-3-03", kind="formula", wrong={"late": 1})
def words_from_states(late: int = 0) -> Table:
    """y_t = T(h_t): one linear map from the decoder's state to the vocabulary, the same at every step."""
    model = af.build("show-tell-tiny").eval()
    with af.look(model, "decoder.output") as seen, torch.no_grad():
        logits = model(pixel_values=_images(), decoder_input_ids=WORDS).logits  # [1, 3, 256]
    h = seen["decoder.output"].roll(late, dims=1)  # [1, 3, 48]
    by_hand = F.linear(h, *inside.language(model))
    assert torch.allclose(by_hand, logits, atol=1e-5)
    return Table(["", "shape"], [["h", list(h.shape)], ["T", "48 x 256"], ["y", list(logits.shape)]])


@item(
    "003-3-04",
    kind="claim",
    documented="python benchmarks/results.py caption-show-tell caption-show-attend-tell",
    holds="partly",
)
def one_vector_for_an_image() -> Table:
    """The problem: all that is to be said must be in one vector. With attention CIDEr is higher (documented runs).

    The runs are of unequal length, so the difference says little; both encoders began from nothing.
    """
    names = ("show-tell-small", "show-attend-tell-small")
    found = {name: float(documented("results.md", rf"`{name}`, [\d.]+M \| CIDEr \**([\d.]+)")[0]) for name in names}
    assert found["show-attend-tell-small"] - found["show-tell-small"] > 0.01
    return Table(["captioner", "CIDEr on 1,000 images of Flickr8k"], list(found.items()))


@item("003-3-05", kind="formula", wrong={"smoothing": 0.1})
def one_of_k(smoothing: float = 0.0) -> Table:
    """A caption is a row of 1-of-K words, an image a set of L = H W annotation vectors a_1, ..., a_L in R^D.

    An id says the same as a vector of K numbers with one 1: both give the same loss.
    """
    model = af.build("show-attend-tell-tiny", coverage_weight=0.0).eval()
    words = torch.tensor([[5, 6, 1]])
    with af.look(model, "encoder.output") as seen, torch.no_grad():
        out = model(pixel_values=_images(), labels=words)
    _, n_vectors, width = seen["encoder.output"].shape
    assert n_vectors == math.prod(model.config.grid) == 16 and out.logits.shape == (1, 3, 256)
    one_hot = F.one_hot(words, 256).float() * (1 - smoothing) + smoothing / 256  # [1, 3, K]
    by_hand = -(one_hot * out.logits.log_softmax(-1)).sum(-1).mean()
    assert torch.allclose(by_hand, out.loss, atol=1e-5)
    return Table(
        ["", "number"], [["K, words of the vocabulary", 256], ["L, annotation vectors", n_vectors], ["D", width]]
    )


@item("003-3-06", kind="claim")
def features_keep_the_place() -> Any:
    """A convolutional feature keeps its place: it depends most on its own region; a fully connected one does not.

    Drawn: for each of 16 features the center of what it depends on, by its gradient; squares are the grid's cells.
    """
    model, pixels = af.build("show-attend-tell-tiny").eval(), _images().requires_grad_()
    with af.look(model, "encoder.output") as seen:
        model(pixel_values=pixels, decoder_input_ids=WORDS)
    connected = nn.Linear(3 * IMAGE_SIZE**2, 16 * 32)(pixels.flatten(1)).view(16, 32)
    place = torch.arange(IMAGE_SIZE) + 0.5
    centers = {}
    for name, vectors in (("convolutional", seen["encoder.output"][0]), ("fully connected", connected)):
        gradients = [torch.autograd.grad(x @ torch.randn(32), pixels, retain_graph=True)[0] for x in vectors]
        shares = torch.stack([g[0].square().sum(0) / g.square().sum() for g in gradients])  # [16, rows, columns]
        centers[name] = torch.stack([shares.sum(1) @ place, shares.sum(2) @ place])  # columns and rows, [2, 16]
    by_column, by_row = centers["convolutional"][0].view(4, 4).mean(0), centers["convolutional"][1].view(4, 4).mean(1)
    assert bool((by_column.diff() > 2).all() and (by_row.diff() > 2).all())  # a cell is 8 pixels wide
    assert float((centers["fully connected"] - 16).abs().max()) < 2  # all in the middle
    drawn, axes = figure(4, 3.4)
    for name, (columns, rows) in centers.items():
        axes.scatter(columns, rows, label=name)
    axes.set(xlim=(0, 32), ylim=(32, 0), xticks=range(0, 33, 8), yticks=range(0, 33, 8), xlabel="column of pixels")
    axes.grid(alpha=0.4)
    drawn.legend(loc="outside upper center", ncols=2)
    return drawn


unavailable(
    "003-3-07",
    "The features come from a CNN that was trained before",
    kind="claim",
    cost="slow",
    why="no CNN trained on ImageNet can be had here, so our captioners learn from nothing (CIDEr 0.2 instead of 0.5)",
)


section("003-4", "Captioning with attention")


def _attend_and_tell(words: Tensor = WORDS) -> tuple[Any, Tensor, Tensor]:
    """A fresh captioner, its grid z [16, D], and its weights [T, 16] over the grid for some words."""
    torch.manual_seed(0)
    model = af.build("show-attend-tell-tiny").eval()
    with af.look(model, "encoder.output", "*.cross.weights") as seen, torch.no_grad():
        model(pixel_values=_images(), decoder_input_ids=words)
    return model, seen["encoder.output"][0], seen["decoder.blocks.0.cross.weights"][0, 0]


@item("003-4-01", kind="mechanism", wrong={"once": True})
def context_at_every_step(once: bool = False) -> Any:
    """With attention there is a new context at every step: each word has weights of its own over the grid."""
    _, z, weights = _attend_and_tell()
    contexts = (weights[:1].expand(3, -1) if once else weights) @ z  # [3, D]
    assert contexts.shape == (3, 32)
    assert all(float((contexts[a] - contexts[b]).abs().max()) > 1e-5 for a, b in ((0, 1), (0, 2), (1, 2)))
    grids = [row.view(4, 4) - weights.min() for row in weights]
    return heatmap(grids, [f"word {t + 1}" for t in range(3)], ("column", "row"))


@item("003-4-02", kind="formula", wrong={"squash": torch.relu})
def scores_of_cells(squash: Any = torch.tanh) -> Table:
    """e_{t,i,j} = f_att(h_{t-1}, z_{ij}), where f_att is a small MLP: here for the first word, by hand.

    h_0 is made of the mean of the cells.
    """
    model, z, weights = _attend_and_tell()
    scores = _first_scores(model, z, squash)
    assert torch.allclose(scores.softmax(-1), weights[0], atol=1e-5)
    return Table([f"column {j}" for j in range(4)], scores.view(4, 4).tolist(), "e_1, a row for each row of the grid")


def _first_scores(model: Any, z: Tensor, squash: Any = torch.tanh) -> Tensor:
    """The score of each cell [16] for the first word."""
    h0 = inside.first_state(model, z.mean(0))[:48]  # the other half starts the LSTM's cell
    w, u, v = inside.score(model).values()
    found: Tensor = squash(w @ h0 + z @ u.T) @ v
    return found


@item("003-4-03", kind="formula", wrong={"over": (1,)})
def weights_of_cells(over: tuple[int, ...] = (0, 1)) -> Table:
    """a_{t,:,:} = softmax(e_{t,:,:}): each weight lies between 0 and 1, and over the grid they sum to 1."""
    model, z, weights = _attend_and_tell()
    e = _first_scores(model, z).view(4, 4).exp()
    assert torch.allclose(e / e.sum(over, keepdim=True), weights[0].view(4, 4), atol=1e-5)  # over rows and columns
    assert float(weights.min()) > 0 and float(weights.max()) < 1
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    return Table(["word", "sum over the grid"], [[t + 1, float(row.sum())] for t, row in enumerate(weights)])


@item("003-4-04", kind="formula", wrong={"cells": "jid"})
def context_of_cells(cells: str = "ijd") -> Table:
    """c_t = Σ_ij a_{t,i,j} z_{ij}. The slide writes z_{t,i,j}, but the features do not depend on the step."""
    _, z, weights = _attend_and_tell()
    c = torch.einsum(f"tij,{cells}->td", weights.view(3, 4, 4), z.view(4, 4, 32))
    assert torch.allclose(c, weights @ z, atol=1e-5)
    _, again, _ = _attend_and_tell(torch.tensor([[0, 9, 9, 9]]))
    assert torch.equal(z, again)  # other words, and more of them: the same features
    return Table(["", "shape"], [["a", "3 x 4 x 4"], ["z", "4 x 4 x 32"], ["c", list(c.shape)]])


@item("003-4-05", kind="formula", wrong={"order": "ifog"})
def lstm_gates(order: str = "ifgo") -> Table:
    """The LSTM's gates i, f, o = σ(·) and g = tanh(·) are one matrix of 4n rows times (E y, h, c).

    PyTorch keeps them in the order i, f, g, o, in two matrices and with two biases.
    """
    model = af.build("show-attend-tell-tiny").eval()
    (lstm,) = inside.rnns(model)
    n, m, d = 48, 32, 32  # widths of the state, of a word and of a cell of the grid
    assert lstm.weight_ih_l0.shape == (4 * n, m + d) and lstm.weight_hh_l0.shape == (4 * n, n)
    read, h, cell = torch.randn(m + d), torch.randn(n), torch.randn(n)  # read = (E y, context)
    one_matrix = torch.cat([lstm.weight_ih_l0, lstm.weight_hh_l0], dim=1)  # 4n x (m + D + n)
    parts = (one_matrix @ torch.cat([read, h]) + lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    gate = dict(zip(order, parts, strict=True))
    new_cell = gate["f"].sigmoid() * cell + gate["i"].sigmoid() * gate["g"].tanh()
    new_h = gate["o"].sigmoid() * new_cell.tanh()
    theirs, _ = lstm(read[None], (h[None], cell[None]))
    assert torch.allclose(new_h, theirs[0], atol=1e-5)
    return Table(["", "shape"], [["T", list(one_matrix.shape)], ["(E y, c, h)", m + d + n], ["gates", "4 x 48"]])


@item(
    "003-4-06",
    kind="claim",
    cost="slow",
    partly="the shipped captioner's sentences are plain and often wrong",
    holds="partly",
)
def looks_elsewhere() -> Any:
    """Each word of a caption looks at another part of the image.

    Two words differ in a third of their weights at most (total variation), so it holds in part.
    """
    answer = shipped("caption")(given("portrait.jpg"), alignment=True)
    weights = answer.alignment  # [words, cells]
    apart = 0.5 * (weights[:, None] - weights[None]).abs().sum(-1)
    assert float(apart.max()) > 0.1
    drawn, axes = figure(8, 4)
    axes.imshow(answer.draw())
    axes.set_axis_off()
    return [f"{answer} (largest difference of two words {float(apart.max()):.2f})", drawn]


@item("003-4-07", kind="system", also=("003-8-05",))
def soft_and_hard() -> Table:
    """Show, Attend and Tell (Xu et al. 2015): soft attention takes the mean of all cells, hard attention one cell.

    Hard attention cannot be learned by the gradient alone; it learns by reward. The BLEU is the paper's, on Flickr8k.
    """
    pixels, taken = _images(), {}
    for hard in (False, True):
        model = af.build("show-attend-tell-tiny", hard_attention=hard).eval()
        assert bool(model(pixel_values=pixels, labels=WORDS).loss.isfinite())  # in training
        with af.look(model.eval(), "*.cross.weights") as seen, torch.no_grad():
            model(pixel_values=pixels, decoder_input_ids=WORDS)
        taken[hard] = seen["decoder.blocks.0.cross.weights"][0, 0]  # [3, 16]
    assert [int((row > 0).sum()) for row in taken[True]] == [1, 1, 1]
    assert [int((row > 0).sum()) for row in taken[False]] == [16, 16, 16]
    rows = [["soft", 16, 67, 44.8, 29.9, 19.5], ["hard", 1, 67, 45.7, 31.4, 21.3]]
    return Table(["attention", "cells a word", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"], rows)


section("003-5", "A general attention layer")


@item("003-5-01", kind="mechanism", wrong={"first_column": True})
def attention_so_far(first_column: bool = False) -> Table:
    """The attention so far: features z (H x W x D) and one query h (D) give one context c (D)."""
    z, h = _normal(3, 3, 8), _normal(8)
    x = z[:, :1].flatten(0, 1) if first_column else z.flatten(0, 1)  # [N, D], N = H W
    score = af.scores.AdditiveScore(8, 8, 8).double()
    c = af.attend(h.view(1, 1, 1, 8), x[None, None], x[None, None], score=score)[0, 0, 0]
    e = torch.stack(
        [score.value @ torch.tanh(score.query @ h + score.key @ z[i, j]) for i in range(3) for j in range(3)]
    )
    a = e.softmax(-1).view(3, 3)
    assert torch.allclose(c, sum(a[i, j] * z[i, j] for i in range(3) for j in range(3)), atol=1e-9)
    return Table(["", "shape"], [["z", "3 x 3 x 8"], ["x", "9 x 8"], ["h", "8"], ["c", "8"]])


@item("003-5-02", kind="formula", wrong={"scaled": True})
def plain_dot_product(scaled: bool = False) -> Table:
    """The MLP becomes a dot product: e_i = h · x_i, a = softmax(e), c = Σ_i a_i x_i."""
    h, x = _normal(1, 1, 1, 8), _normal(1, 1, 9, 8)
    c = af.attend(h, x, x, score=af.scores.DotScore(scaled=scaled))
    e = torch.stack([h.flatten() @ x[0, 0, i] for i in range(9)])
    a = e.exp() / e.exp().sum()
    assert torch.allclose(c.flatten(), sum(a[i] * x[0, 0, i] for i in range(9)), atol=1e-9)
    return Table(["i", "e_i", "a_i"], [[i + 1, float(e[i]), float(a[i])] for i in range(9)])


@item("003-5-03", kind="claim")
def order_of_inputs() -> str:
    """Attention does not know the order of its inputs, so a grid may be stretched into N = H W vectors."""
    h, x, order = _normal(1, 1, 1, 8), _normal(1, 1, 9, 8), torch.randperm(9)
    moved = x[:, :, order]
    difference = float((af.attend(h, x, x) - af.attend(h, moved, moved)).abs().max())
    assert difference < 1e-14
    return f"order {order.tolist()}: largest difference {difference:.0e}"


section("003-6", "Temperature")

TEMPERATURES = (0.1, 0.5, 1.0, 2.0, 10.0, 1000.0)


@item("003-6-01", kind="figure")
def temperature_evens() -> Any:
    """The higher the temperature, the more even the softmax, up to equal weights for all.

    Drawn: the entropy of the weights of one query over 10 keys; log 10 is the largest there is.
    """
    query, key = _normal(1, 1, 1, 16), _normal(1, 1, 10, 16) * 3
    entropies = []
    for temperature in TEMPERATURES:
        weights = af.attention_weights(query, key, score=af.scores.DotScore(temperature=temperature))
        entropies.append(float(-(weights * weights.clamp(min=1e-300).log()).sum()))
    assert entropies == sorted(entropies) and abs(entropies[-1] - math.log(10)) < 1e-3
    drawn, axes = figure(4.5, 2.6)
    axes.semilogx(TEMPERATURES, entropies, marker="o")
    axes.axhline(math.log(10), linestyle=":", color="gray", label="log 10")
    axes.set(xlabel="temperature", ylabel="entropy", ylim=(0, 2.5))
    axes.legend()
    return drawn


@item("003-6-01a", kind="figure")
def temperature_bars() -> Any:
    """The same words at several temperatures: one bar rises above all when it is low, all are alike when it is high."""
    words, scores = ["cat", "dog", "mouse", "house", "tree"], torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])
    drawn = af.plot.temperature(scores, words, (0.2, 1.0, 5.0))
    heights = [[bar.get_height() for bar in axes.patches] for axes in drawn.axes]
    assert all(abs(sum(panel) - 1) < 1e-5 for panel in heights)
    assert heights[0][0] > 0.95 and max(heights[2]) < 0.35
    return drawn


section("003-7", "The scaled dot product")


@item("003-7-01", kind="formula", wrong={"width": 32})
def scaled_dot_product(width: int = 8) -> Table:
    """e_i = h · x_i / √D. With heads, D is the width of a head, not that of the model."""
    query, key = _normal(1, 4, 3, 8), _normal(1, 4, 5, 8)  # 4 heads of 8: a model of 32
    scores = af.scores.DotScore()(query, key)
    assert torch.allclose(scores, query @ key.transpose(-1, -2) / width**0.5, atol=1e-12)
    return Table([f"key {i}" for i in range(5)], scores[0, 0].tolist(), "scores of the first head")


@item("003-7-02", kind="claim")
def variance_grows() -> Table:
    """More dimensions, more terms: the variance of a dot product of normal vectors is their width d, within 6%."""
    rows = []
    for d in (16, 64, 256, 1024):
        products = (torch.randn(10000, d) * torch.randn(10000, d)).sum(-1)
        rows.append([d, float(products.var()), float((products / d**0.5).var())])
    assert all(abs(variance / d - 1) < 0.06 and abs(scaled - 1) < 0.06 for d, variance, scaled in rows)
    return Table(["d", "variance of q · k", "of q · k / √d"], rows)


@item("003-7-04", kind="claim")
def like_initialization() -> Table:
    """It is the argument of Xavier's and Kaiming's initialization: a sum of d terms is divided by √d.

    There the weights are, here the scores; both keep the variance at 1.
    """
    rows = []
    for d in (64, 256, 1024):
        x, weight = torch.randn(512, d), torch.empty(d, d)
        nn.init.xavier_normal_(weight)  # deviation 1/√d for a square matrix
        scores = af.scores.DotScore()(torch.randn(1, 1, 512, d), torch.randn(1, 1, 512, d))
        rows.append([d, float((x @ weight).var()), float(scores.var())])
    assert all(abs(value - 1) < 0.06 for row in rows for value in row[1:])
    return Table(["d", "variance of x W, Xavier", "variance of q · k / √d"], rows)


section("003-8", "Keys, values and many queries")


@item("003-8-01", kind="mechanism", also=("003-23-02",), wrong={"together": False})
def many_queries(together: bool = True) -> Table:
    """M queries at once: M x D queries and N x D inputs give M x D_v outputs, as if each were asked alone."""
    query, key, value = _normal(1, 1, 4, 8), _normal(1, 1, 9, 8), _normal(1, 1, 9, 6)  # M = 4, N = 9
    out = af.attend(query, key, value)
    alone = [af.attend(query[:, :, [i if together else 0]], key, value) for i in range(4)]
    assert out.shape == (1, 1, 4, 6)
    assert torch.allclose(out, torch.cat(alone, dim=2), atol=1e-12)
    return Table(["", "shape"], [["queries", "4 x 8"], ["keys", "9 x 8"], ["values", "9 x 6"], ["outputs", "4 x 6"]])


@item("003-8-03", kind="formula", wrong={"axis": 1})
def inputs_as_rows(axis: int = 0) -> Table:
    """e_ij = q_j · k_i / √D_k, a = softmax over i, y_j = Σ_i a_ij v_i: here i counts inputs and j outputs.

    It is the transpose of what the other decks write. The slide divides by √D; it must be the width of the keys.
    """
    q, k, v = _normal(3, 4), _normal(5, 4), _normal(5, 6)  # outputs, inputs; D_k = 4, D_v = 6
    a = torch.softmax(k @ q.T / 4**0.5, dim=axis)  # [inputs, outputs]
    assert torch.allclose(a.T, af.attention_weights(q[None, None], k[None, None])[0, 0], atol=1e-12)
    assert torch.allclose(a.T @ v, af.attend(q[None, None], k[None, None], v[None, None])[0, 0], atol=1e-12)
    return Table([f"y_{j + 1}" for j in range(3)], a.tolist(), "a, a column for each output")


section("003-9", "Self-attention")  # whose items are those of other decks
section("003-10", "Transformers and pre-training")


@item("003-10-01", kind="claim", documented="python benchmarks/results.py bert bert-wide sst2")
def imagenet_moment() -> Table:
    """The "ImageNet moment" of language: train a model on much text, then fine-tune it on your task.

    Documented runs on SST-2. With our small corpus it helps by a point or two, with MiniLM's large one by ten.
    """
    ours, without = (
        float(documented("results.md", pattern)[0])
        for pattern in (
            r"BERT, `bert` \|.*?\| 175 \| \*\*([\d.]+)",
            r"`bert-wide`.*\n\| the same, not pre-trained \| \| \| ([\d.]+)",
        )
    )
    large = float(documented("results.md", r"SST-2 \| MiniLM, 22.7M \| \*\*([\d.]+)")[0])
    assert large - without > 8 and ours > without
    rows = [["none", without], ["39 MB of stories, by us", ours], ["MiniLM", large]]
    return Table(["pre-training", "accuracy on SST-2, %"], rows)


missing(
    "003-10-02",
    "Fine-tune a language model (a decoder) on your own task, as GPT-1 did",
    kind="mechanism",
    needs="a classifier on the last token for decoder-only recipes, and loading of *ForSequenceClassification of them",
)


section("003-11", "Positions")


@item("003-11-01", kind="claim")
def unique_codes() -> str:
    """Desirable 1: each position has a code of its own."""
    codes = af.positions.sinusoids(torch.arange(1000), 64)
    apart = torch.cdist(codes, codes) + 9 * torch.eye(1000, dtype=codes.dtype)
    assert float(apart.min()) > 1.4
    return f"1,000 positions, 64 features: the two closest are {float(apart.min()):.2f} apart"


@item("003-11-02", kind="claim", also=("004-5-03",))
def consistent_distances() -> Any:
    """Desirable 2: distances mean the same everywhere: the product of two codes depends on their difference alone."""
    codes = af.positions.sinusoids(torch.arange(400), 64)
    products = codes @ codes.T
    for distance in (1, 5, 50):
        along = products.diagonal(distance)
        assert float(along.max() - along.min()) < 1e-9
    drawn, axes = figure(5, 2.4)
    for start in (0, 200):
        axes.plot(products[start, start : start + 150], linestyle="--" if start else "-", label=f"from {start}")
    axes.set(xlabel="distance", ylabel="product of the codes")
    axes.legend()
    return drawn


@item("003-11-03", kind="claim", holds="partly", beside="python experiments/03_positions.py")
def longer_than_trained() -> Table:
    """Desirable 3: the values are bounded, so longer sentences should be easy. The first half holds, the second not.

    Documented run: learned on 32 positions, read on 64. Sines are defined there, but the model cannot read them.
    """
    assert float(af.positions.sinusoids(torch.arange(5000), 64).abs().max()) <= 1
    row = r"\| {} \| ([\d.]+) .*?\| [\d.]+ .*?\| ([\d.]+) "
    names = ("sinusoidal", "learned table", "rotary")
    page = "experiments/03-positions.md"
    found = {name: [float(x) for x in documented(page, row.format(name))] for name in names}
    assert found["sinusoidal"][0] > 0.99 and found["sinusoidal"][1] < 0.2 and found["rotary"][1] > 0.99
    return Table(["positions", "right within 32", "right beyond 32"], [[name, *pair] for name, pair in found.items()])


@item("003-11-04", kind="claim", also=("004-5-02",))
def deterministic() -> str:
    """Desirable 4: the code is a fixed function of the position, equal to the last bit at every call."""
    first, second = (af.positions.sinusoids(torch.arange(100), 64) for _ in range(2))
    assert torch.equal(first, second)
    return "two calls: all 6,400 numbers equal"


@item("003-11-05", kind="formula", wrong={"first": 1})
def sines_and_cosines(first: int = 0) -> Any:
    """p(t) = (sin ω_0 t, cos ω_0 t, sin ω_1 t, ...) with ω_k = 1 / 10000^(2k/d) for k = 0, ..., d/2 - 1.

    The slide counts k from 1, which loses the fastest wave.
    """
    d, t = 64, torch.arange(50, dtype=torch.float64)
    frequencies = [10000 ** (-2 * k / d) for k in range(first, first + d // 2)]
    by_hand = torch.stack([f(w * t) for w in frequencies for f in (torch.sin, torch.cos)], dim=1)
    codes = af.positions.sinusoids(torch.arange(50), d)  # [50, 64]
    assert torch.allclose(codes, by_hand, atol=1e-9)
    drawn, axes = figure(6, 3)
    shown = axes.imshow(codes.T, cmap="RdBu", aspect="auto")
    axes.set(xlabel="position t", ylabel="feature")
    drawn.colorbar(shown)
    return drawn


@item(
    "003-11-06",
    kind="mechanism",
    partly="our recipes add positions; none sets them beside the word",
    wrong={"beside": False},
)
def concatenate_or_add(beside: bool = True) -> Table:
    """Positions are set beside the words or added to them; what follows is linear, so adding is a case of the first.

    W (x, p) = W₁ x + W₂ p: with concatenation the position has a matrix of its own, with addition it shares that of
    the word.
    """
    x, p = _normal(5, 8), af.positions.sinusoids(torch.arange(5), 4)  # words of d = 8, positions of d_p = 4
    w = _normal(12, 6)
    together = torch.cat([x, p], dim=-1) if beside else torch.cat([p, x], dim=-1)  # [5, d + d_p]
    assert torch.allclose(together @ w, x @ w[:8] + p @ w[8:], atol=1e-12)
    assert torch.equal(together[:, :8], x) and torch.equal(together[:, 8:], p)
    return Table(["way", "width of a token"], [["concatenated", "d + d_p = 12"], ["added", "d = 8"]])


@item("003-11-08", kind="mechanism", wrong={"positions": "learned"})
def fixed_function(positions: str = "sinusoidal") -> Table:
    """Option 2: positions by a fixed function, with nothing to learn (option 1, a learned table, is 001-6-04).

    Counted: what a ViT with such positions learns more than one without any.
    """
    counts = {
        name: sum(p.numel() for p in af.build("vit-tiny", positions=name).parameters() if p.requires_grad)
        for name in ("none", positions, "learned")
    }
    assert counts[positions] == counts["none"]
    assert counts["learned"] - counts["none"] == 17 * 64  # 16 patches and a class token, 64 features
    fixed = af.positions.sinusoids(torch.arange(17), 64)
    assert not fixed.requires_grad and fixed.shape == (17, 64)
    return Table(["positions", "learned numbers"], [[name, n - counts["none"]] for name, n in counts.items()])


section("003-12", "Masked self-attention")


@item("003-12-01", kind="mechanism", wrong={"fill": 0.0})
def future_is_minus_infinity(fill: float = -math.inf) -> Any:
    """Scores of future positions are set to -inf, so their weights are exactly zero. (The slide adds "-nan".)

    Nothing is NaN, not even where a query may look at nothing at all: it gets zeros.
    """
    x = _normal(1, 1, 6, 4)
    weights = af.attention_weights(x, x, af.masks.Causal())[0, 0]
    future = torch.ones(6, 6).triu(1).bool()
    by_hand = (x[0, 0] @ x[0, 0].T / 2).masked_fill(future, fill).softmax(-1)
    assert torch.allclose(weights, by_hand, atol=1e-12)
    assert bool((weights[future] == 0).all()) and not bool(weights.isnan().any())
    nothing = af.attend(x, x, x, af.masks.Padding(torch.zeros(1, 6).bool()))
    assert bool((nothing == 0).all())
    return heatmap([weights], ["causal weights"], size=3)


section("003-13", "Multi-head self-attention")


@item("003-13-03", kind="formula", wrong={"n_heads": 4})
def heads_of_64(n_heads: int = 8) -> Table:
    """h = 8 heads of d_k = d_v = d_model / h = 512 / 8 = 64 features."""
    model = af.build("transformer-base", n_layers=1, vocab_size=50, n_heads=n_heads).eval()
    with af.look(model, "encoder.blocks.0.self.*") as seen, torch.no_grad():
        model(input_ids=SOURCE, decoder_input_ids=WORDS)
    shapes = {name: list(seen[f"encoder.blocks.0.self.{name}"].shape) for name in ("query", "key", "value")}
    assert all(64 in shape and 8 in shape for shape in shapes.values())
    return Table(["", "shape: batch, heads, tokens, features"], list(shapes.items()))


@item(
    "003-13-04",
    kind="claim",
    also=("004-16-01",),
    holds="partly",
    documented="python experiments/06_training.py",
)
def one_head_averages() -> Table:
    """One head alone averages, which inhibits attending to several places at once (documented run).

    Eight heads of the same total width do better, but one head does not do badly.
    """
    page, row = "experiments/06-training.md", r"\| {} \| [\d,]+ \| [\d.]+ .*?\| ([\d.]+) "
    found = {name: float(documented(page, row.format(name))[0]) for name in ("as usual", "1 head")}
    assert 0.005 < found["as usual"] - found["1 head"] < 0.1
    return Table(["heads", "numbers right"], [["8", found["as usual"]], ["1", found["1 head"]]])


section("003-14", "General attention and self-attention")


@item("003-14-01", kind="figure")
def general_and_self() -> Table:
    """General attention takes queries of its own; self-attention makes queries, keys and values of the same x.

    In a translator both occur: the encoder looks at itself, the decoder at the encoder.
    """
    model = af.build("transformer-tiny").eval()
    with af.look(model, "encoder.blocks.0.self.*", "decoder.blocks.0.cross.*") as seen, torch.no_grad():
        model(input_ids=SOURCE, decoder_input_ids=WORDS)
    parts = ("encoder.blocks.0.self", "decoder.blocks.0.cross")
    rows = [[part, *(seen[f"{part}.{name}"].shape[2] for name in ("query", "key", "value"))] for part in parts]
    assert [row[1:] for row in rows] == [[7, 7, 7], [3, 7, 7]]
    return Table(["attention", "queries", "keys", "values"], rows)


section("003-15", "Advantages and applications")


@item("003-15-02", kind="claim", holds="partly", documented="python experiments/04_bottleneck.py")
def less_training_time() -> Table:
    """Without recurrent units a transformer should train faster than LSTMs: it holds against Bahdanau's alone.

    Documented run: BLEU after the 9 seconds that the transformer takes.
    """
    pattern = r"is ([\d.]+) \(RNN,\s+one\s+vector\s+\(Sutskever\)\),\s+([\d.]+)\s+\(Bahdanau\),\s+([\d.]+)\s+\(Luong\),"
    one_vector, bahdanau, luong, transformer = (
        float(x) for x in documented("experiments/04-bottleneck.md", pattern + r"\s+([\d.]+)\s+\(Transformer\)")
    )
    assert transformer > bahdanau + 20 and transformer > one_vector + 10
    assert luong >= transformer  # against the claim
    rows = [["Luong", luong], ["Transformer", transformer], ["one vector", one_vector], ["Bahdanau", bahdanau]]
    return Table(["model", "BLEU at equal time"], rows)


@item(
    "003-15-03",
    kind="claim",
    partly="models of others that run here (SmolLM2, MiniLM) read web text; our own read small public sets",
    beside="python benchmarks/results.py stories bert",
)
def corpora() -> Table:
    """Transformers are trained on Wikipedia and Common Crawl; ours on corpora that are hundreds of times smaller.

    BERT's Wikipedia and books are 3.3 billion words (Devlin et al. 2019), Common Crawl for GPT-3 is 570 GB of text
    after filtering (Brown et al. 2020). Counted here: the letters of the stories.
    """
    (name,) = documented("results.md", r"\| \| (classic stories \+ TinyStories) \| `gpt2-mini`")
    (said,) = documented("results.md", r"On the (\d+) MB of `classic_stories`")
    size = 0
    for split in ("train", "valid"):
        with gzip.open(data("classic_stories", f"{split}.txt.gz"), "rb") as file:
            size += sum(len(part) for part in iter(functools.partial(file.read, 1 << 20), b""))
    assert abs(size / 1e6 - int(said)) < 0.1 * int(said)
    assert size < 570e9 / 1000
    words = size / 6  # about six letters a word, its space with it
    assert words < 3.3e9 / 300
    rows = [["gpt2-mini", name, ""], ["bert-mini", "classic stories", f"{size / 1e6:.0f} MB"]]
    return Table(["model", "corpus", "size"], [*rows, ["GPT-3 (published)", "Common Crawl, filtered", "570 GB"]])


@item("003-15-04", kind="table", cost="slow")
def applications() -> Table:
    """Applications: seven tasks of language, six of vision and one of audio, by models that come along."""
    pair = ("The company said profits rose.", "Profits rose, the company said.")
    context = "Cleopatra had a sister called Arsinoe who lived in Ephesus."
    chat = "Sara: Did you feed the cat?\nMark: Oh no, I forgot!\nSara: Please do it when you get home."
    asked: dict[str, list[tuple[str, Any, str]]] = {
        "language": [
            ("translate", "A white dog runs.", "Hund"),
            ("summarize", chat, "cat"),
            ("classify-text", "The actors are a joy to watch.", "positive"),
            ("classify-pair", pair, "same"),
            ("tag", "Angela Merkel met Barack Obama in Berlin.", "[Berlin: LOC]"),
            ("answer", ("Who was Cleopatra's sister?", context), "Arsinoe"),
            ("generate", "Once upon a time there was a little", "girl named"),
        ],
        "vision": [
            ("classify-image", given("ship.jpg"), "ship"),
            ("caption", given("portrait.jpg"), "a man "),
            ("read", given("line.png"), "Invoice 2031-07"),
            ("detect", given("cells.jpg"), "WBC 1.00"),
            ("pose", given("face.jpg"), "jaw_middle"),
            ("reconstruct", given("ship.jpg"), "48 of 64 masked patches"),
        ],
        "audio": [("classify-audio", given("seven.wav"), "7")],
    }
    rows = []
    for field, tasks in asked.items():
        for task, subject, wanted in tasks:
            options = {"max_new_tokens": 8, "do_sample": False} if task == "generate" else {}
            answer = str(shipped(task)(subject, **options))
            assert wanted in answer, f"{task}: {answer}"
            told = " / ".join(subject) if isinstance(subject, tuple) else subject.rsplit("/", 1)[-1]
            rows.append([field, task, told, answer if len(answer) < 100 else f"{answer[:100]} …"])
    assert [len(tasks) for tasks in asked.values()] == [7, 6, 1]
    return Table(["field", "task", "input", "answer"], rows)


missing(
    "003-15-05",
    "Applications: reinforcement learning and robotics",
    kind="table",
    needs="a recipe for trajectories (return, state, action; a decision transformer), its data and its evaluation",
)
missing(
    "003-15-06",
    "Applications: playing chess",
    kind="table",
    needs="games as lists of moves for `generate`, and the share of legal moves on games not seen",
)


section("003-16", "RNNs and transformers")


@item(
    "003-16-01",
    kind="claim",
    holds="partly",
    documented="python experiments/05_paths.py; python experiments/12_limits.py",
)
def lstm_over_long_sequences() -> Table:
    """LSTMs work reasonably well for long sequences: it depends on the task (documented runs).

    An LSTM keeps parity over 256 tokens, where transformers fail; it does not learn to copy over 16 positions in 250
    steps, which attention does.
    """
    last_column = r"\| LSTM \| 33,731 (?:\| [\d.]+ ± [\d.]+ ){4}\| ([\d.]+)"  # the first such row is parity's
    parity = float(documented("experiments/12-limits.md", last_column)[0])
    row = r"\| {} \| 16 \| \d+ \|.*\| ([\d.]+) ± [\d.]+ \|"
    copies = {
        name: float(documented("experiments/05-paths.md", row.format(pattern))[0])
        for name, pattern in (("LSTM", r"recurrent \(LSTM\)"), ("attention", "attention"))
    }
    assert parity > 0.99 and copies["LSTM"] < 0.2 and copies["attention"] > 0.99
    rows = [["parity, positions 129 to 256", parity], ["copy over 16 positions", copies["LSTM"]]]
    return Table(["LSTM", "right"], [*rows, ["the same copy, by attention", copies["attention"]]])


@item("003-16-02", kind="claim")
def rnns_need_order() -> Table:
    """An RNN expects ordered inputs: the same words in another order give another state.

    Attention without positions gives the same outputs, in the other order.
    """
    x, order = _normal(1, 7, 8), torch.tensor([6, 5, 4, 3, 2, 1, 0])
    lstm = nn.LSTM(8, 8, batch_first=True).double()
    changed = float((lstm(x)[1][0] - lstm(x[:, order])[1][0]).abs().max())
    out, moved = (af.attend(y[:, None], y[:, None], y[:, None]) for y in (x, x[:, order]))
    kept = float((out[:, :, order] - moved).abs().max())
    assert changed > 0.01 and kept < 1e-12
    model = af.build("sutskever-tiny").eval()
    logits = [model(input_ids=ids, decoder_input_ids=WORDS).logits for ids in (SOURCE, SOURCE.flip(1))]
    assert not torch.allclose(*logits, atol=1e-5)
    return Table(["", "change by another order"], [["last state of an LSTM", changed], ["attention", kept]])


@item("003-16-04", kind="claim")
def sees_all_inputs() -> Table:
    """In a transformer each calculation sees all inputs: any two tokens are one layer apart, in an RNN n steps."""
    transformer, rnn = af.build("transformer-tiny").eval(), af.build("sutskever-tiny", reverse=False).eval()
    rows = [[n, af.path_length(transformer, 0, n), af.path_length(rnn, 0, n)] for n in (1, 4, 16, 30)]
    assert all(one == 1 for _, one, _ in rows)
    assert all(steps is not None and steps >= n for n, _, steps in rows)
    return Table(["distance", "layers of a transformer", "steps of a two-layer LSTM"], rows)


section("003-17", "Captioning with transformers")


@item("003-17-01", kind="formula", wrong={"axis": -2})
def transformer_captioner(axis: int = -1) -> Table:
    """c = T_W(z): a transformer encoder over the features of a CNN; a transformer decoder looks at all of them."""
    model = af.build("cnn-transformer-tiny").eval()
    with af.look(model, "encoder.output", "decoder.blocks.0.cross.*") as seen, torch.no_grad():
        logits = model(pixel_values=_images(), decoder_input_ids=WORDS).logits
    c = seen["encoder.output"]
    query, key, weights = (seen[f"decoder.blocks.0.cross.{name}"] for name in ("query", "key", "weights"))
    assert c.shape == (1, 16, 32) and weights.shape == (1, 4, 3, 16) and logits.shape == (1, 3, 256)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    assert torch.allclose(scores.softmax(axis), weights, atol=1e-5)  # each word looks at all cells
    rows = [["c", list(c.shape)], ["weights: heads, words, cells", list(weights.shape[1:])]]
    return Table(["", "shape"], [*rows, ["logits", list(logits.shape)]])


@item(
    "003-17-02",
    kind="claim",
    beside="python benchmarks/results.py caption-show-tell caption-show-attend-tell caption-cnn-transformer",
)
def no_recurrence() -> Table:
    """No recurrence at all, and the best CIDEr of our four captioners (documented runs, of unequal length)."""
    names = ("show-tell", "show-attend-tell", "cnn-transformer")
    recurrent = {name: bool(inside.rnns(af.build(f"{name}-tiny").eval())) for name in names}
    assert recurrent == {"show-tell": True, "show-attend-tell": True, "cnn-transformer": False}
    scores = {name: documented("results.md", rf"`{name}-small`, [\d.]+M \| CIDEr \**([\d.]+)")[0] for name in names}
    assert max(scores, key=lambda name: float(scores[name])) == "cnn-transformer"
    return Table(["captioner", "recurrent", "CIDEr"], [[name, recurrent[name], scores[name]] for name in names])


section("003-18", "The encoder block")


@item("003-18-01", kind="figure", cost="slow")
def six_blocks_of_512() -> Table:
    """N = 6 blocks of width 512. The slide calls 512 D_q; it is d_model, and a head's queries have 64 features."""
    config = af.build("transformer-base", vocab_size=50).config
    assert (config.n_layers, config.d_model, config.d_model // config.n_heads) == (6, 512, 64)
    return Table(["N", "d_model", "d_q of a head"], [[6, 512, 64]])


section("003-19", "The decoder block")  # whose items are those of other decks
section("003-20", "From pixels to language")


@item(
    "003-20-01",
    kind="claim",
    holds="partly",
    beside="python benchmarks/results.py caption-cnn-transformer caption-vit-transformer",
)
def no_convolutions() -> Table:
    """No convolutions are needed: ViT reads the image, a transformer writes the caption.

    The patches enter by one linear map. On few images it does not come up to the CNN: CIDEr 0.180 against 0.220.
    """
    model = af.build("vision-encoder-decoder-tiny").eval()
    assert not any(isinstance(module, (nn.Conv2d, nn.RNNBase)) for module in model.modules())
    with torch.no_grad():
        assert model(pixel_values=_images(), decoder_input_ids=WORDS).logits.shape == (1, 3, 256)
    names = ("cnn-transformer-small", "vit-transformer-small")
    found = {name: float(documented("results.md", rf"`{name}`, [\d.]+M \| CIDEr \**([\d.]+)")[0]) for name in names}
    assert found["vit-transformer-small"] > 0.15
    return Table(["captioner", "CIDEr on Flickr8k"], list(found.items()))


@item("003-20-02", kind="reference", cost="slow", partly="our own ViT; the published weights cannot be had here")
def vit_to_try() -> str:
    """The slide links a notebook with ViT; `anyformer run classify-image` does the same here."""
    answer = str(shipped("classify-image")(given("ship.jpg")))
    assert answer.startswith("ship")
    return f"ship.jpg: {answer}"


section("003-21", "Vision transformers")  # whose items are those of other decks
section("003-22", "ViT and ResNet")

missing(
    "003-22-01",
    "Accuracy against the compute of pre-training for ViT, ResNet and hybrids (the paper's figure 5)",
    kind="figure",
    cost="gpu",
    needs="resnet-cifar, hybrid-cifar and vit-cifar at three sizes and budgets (one size each is trained)",
)
missing(
    "003-22-02",
    "Hybrids are better when small, and the gap vanishes for large models",
    kind="claim",
    cost="gpu",
    needs="hybrid-cifar and vit-cifar trained at three sizes each",
)


section("003-23", "Summary")


@item(
    "003-23-05",
    kind="claim",
    holds="partly",
    documented="python benchmarks/results.py vit-cifar resnet-deit vit-1 resnet-1",
)
def may_replace_convolutions() -> Table:
    """Attention may even replace convolutions: on CIFAR-10 the two are level at equal size (documented runs).

    With 1% of the images convolutions are far ahead.
    """
    vit, resnet = (
        float(documented("results.md", rf"`{name}`, [\d.]+M[^|]*\| \**([\d.]+)")[0])
        for name in ("vit-cifar", "resnet-cifar")
    )
    few_vit, few_resnet = documented("results.md", r"ViT had ([\d.]+)%, the hybrid [\d.]+%, ResNet ([\d.]+)%")
    assert abs(vit - resnet) < 0.5 and float(few_resnet) - float(few_vit) > 20
    return Table(["", "all images", "1% of them"], [["ViT", vit, few_vit], ["ResNet", resnet, few_resnet]])
