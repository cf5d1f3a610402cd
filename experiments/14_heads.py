"""Claim 14: what the attention of real models does on the lectures' sentences.

python experiments/14_heads.py
python experiments/14_heads.py --model runs/en-fr      # another translation model than the one that ships
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer import pretrained
from anyformer.model import Model
from frame import Claim, Found, Options, Picture, Table, main, plot
from real import weights

CLAIM = Claim(
    number=14,
    name="heads",
    title="Where the attention of real models looks",
    items=("000-1b-04", "000-2.3-01", "002-8-02", "003-2-07", "004-17-02"),
    says='In "The animal didn\'t cross the street because it was too tired" attention shows what "it" means: the'
    " animal;"
    ' with "wide" for "tired" it is the street. And the cross-attention of a translator aligns words ("The agreement on'
    ' the European Economic Area was signed in August 1992.").',
    did="MiniLM-L6 (an encoder) and SmolLM2-135M (a decoder), real weights, every head: how much of the weight that"
    " goes"
    ' from "it" to the two nouns goes to the animal, with "tired" and with "wide"; a head does what is claimed where it'
    " is above one half with the first and below with the second. Since one head among many does so by chance, the"
    " head that does it most is tested on eight other pairs of sentences of the same kind, and so is the mean of all"
    " heads. A"
    ' decoder cannot look ahead, so its "it" is the same in both sentences; the same is measured from the adjective,'
    " which comes after. The alignment is that of the model en-fr that ships (8M parameters), or of another translator,"
    " given by `--model`.",
    seeds=(0,),
    takes={"model": "a folder with an English-French translation model, for the alignment"},
)
AGREEMENT = "The agreement on the European Economic Area was signed in August 1992."


@dataclass(frozen=True)
class Pair:
    """A sentence with two endings: after the first "it" means the first noun, after the second the other."""

    text: str
    nouns: tuple[str, str]
    endings: tuple[str, str]


LECTURE = Pair("The animal didn't cross the street because it was too {}.", ("animal", "street"), ("tired", "wide"))
OTHERS = (
    Pair("The trophy didn't fit in the suitcase because it was too {}.", ("trophy", "suitcase"), ("large", "small")),
    Pair("The ball broke the table because it was made of {}.", ("ball", "table"), ("steel", "glass")),
    Pair("The dog didn't enter the house because it was too {}.", ("dog", "house"), ("scared", "dark")),
    Pair("The car couldn't pass the bridge because it was too {}.", ("car", "bridge"), ("heavy", "weak")),
    Pair("The horse didn't jump the wall because it was too {}.", ("horse", "wall"), ("lazy", "high")),
    Pair("The boat didn't cross the river because it was too {}.", ("boat", "river"), ("old", "wild")),
    Pair("The cat didn't eat the fish because it was too {}.", ("cat", "fish"), ("full", "salty")),
    Pair("The child didn't climb the tree because it was too {}.", ("child", "tree"), ("young", "tall")),
)
READERS = {"MiniLM-L6": ("MiniLM-L6-v2", "it"), "SmolLM2-135M": ("SmolLM2-135M-Instruct", "it"),
           "SmolLM2-135M, from the adjective": ("SmolLM2-135M-Instruct", "ending")}  # fmt: skip


@dataclass
class Looked:
    """`lecture` [2, layers, heads]: the share that the first noun gets, with either ending. `others` the same for the
    other pairs [pairs, 2, layers, heads]."""

    lecture: Tensor
    others: Tensor
    share: float  # of the weight of the asking word that goes to the two nouns at all

    @property
    def does(self) -> Tensor:
        """Heads that do what is claimed on the lecture's pair."""
        return (self.lecture[0] > 0.5) & (self.lecture[1] < 0.5)

    @property
    def best(self) -> tuple[int, int]:
        """The head whose share moves most between the endings, of those that do, if any do."""
        moves = self.lecture[0] - self.lecture[1] - (~self.does).double()
        layer, head = divmod(int(moves.argmax()), moves.shape[1])
        return layer, head

    @property
    def named(self) -> str:
        layer, head = self.best
        return f"layer {layer + 1}, head {head + 1}" if self.does.any() else "none"

    def right(self, shares: Tensor) -> float:
        """The share of sentences whose noun is chosen rightly: [pairs, 2]."""
        return float(((shares[:, 0] > 0.5).sum() + (shares[:, 1] < 0.5).sum()) / shares.numel())


def run(options: Options) -> Found:
    paths = {package: weights(package) for package, _ in READERS.values()}
    models = {package: (af.load(path).eval(), af.Tokenizer.load(path)) for package, path in paths.items()}
    looked = {name: look(*models[package], asks) for name, (package, asks) in READERS.items()}
    verdict, words = judge(looked)
    pictures = [draw(looked)]
    ours = pretrained.find("en-fr")
    if "model" in options.own or (ours is not None and ours.problem is None):
        pictures.append(align(options.own.get("model", "en-fr")))
    else:
        words += " No translation model is here, so the alignment is not drawn."
    return Found(
        tables=[head_table(looked), lecture_table(looked)],
        pictures=pictures,
        verdict=verdict,  # type: ignore[arg-type]
        words=words,
        exact={'a decoder\'s "it" does not see the ending': same_it(looked["SmolLM2-135M"])},
    )


def same_it(found: Looked) -> bool:
    return torch.allclose(found.lecture[0], found.lecture[1], atol=1e-5)


def look(model: Model, tokenizer: Any, asks: str) -> Looked:
    pairs = [torch.stack([shares(model, tokenizer, pair, i, asks)[0] for i in (0, 1)]) for pair in (LECTURE, *OTHERS)]
    total = shares(model, tokenizer, LECTURE, 0, asks)[1]
    return Looked(pairs[0], torch.stack(pairs[1:]), float(total.mean()))


def shares(model: Model, tokenizer: Any, pair: Pair, which: int, asks: str) -> tuple[Tensor, Tensor]:
    """[layers, heads]: of the weight that the asking word gives to the two nouns, the share of the first; and how much
    that weight is."""
    ids = tokenizer.encode(pair.text.format(pair.endings[which]))
    pieces = [piece.strip("Ġ▁ ").lower() for piece in tokenizer.tokens(ids)]
    asking = last(pieces, "it" if asks == "it" else pair.endings[which])
    first, second = (last(pieces[:asking], noun) for noun in pair.nouns)
    with af.look(model, "*.self.weights") as seen, torch.inference_mode():
        model(input_ids=torch.tensor([ids]))
    weights_ = torch.stack([value[0, :, asking].double() for value in seen.values()])
    to = weights_[..., first], weights_[..., second]
    return to[0] / (to[0] + to[1]), to[0] + to[1]


def last(pieces: Sequence[str], word: str) -> int:
    """The place of a word; of one in several pieces that of its last."""
    for end in range(len(pieces), 0, -1):
        for start in range(end - 1, max(end - 5, -1), -1):
            if "".join(piece.removeprefix("##") for piece in pieces[start:end]) == word:
                return end - 1
    raise ValueError(f"{word} is not in {pieces}")


def align(folder: str) -> Picture:
    """The last layer's cross-attention, the mean of its heads, while the model writes its own translation."""
    translate = af.task("translate", folder)
    source = translate.tokenizer.encode(AGREEMENT)
    ids = torch.tensor([source])
    made = translate.model.generate(input_ids=ids, num_beams=5, max_new_tokens=60, alignment=True)
    target = made.sequences[0, -made.alignment.shape[1] :]
    real = [i for i, token in enumerate(target.tolist()) if token not in (translate.tokenizer.pad_id, None)]
    names = [translate.tokenizer.tokens(some) for some in (source, target[real].tolist())]
    figure = af.plot.alignment(made.alignment[0, real], *names)
    return Picture(figure, "What each word of the translation looked at while it was written.")


# What is said of it


def judge(looked: dict[str, Looked]) -> tuple[str, str]:
    parts = []
    for name, one in looked.items():
        layer, head = one.best
        n, total = int(one.does.sum()), one.does.numel()
        if not n:
            parts.append(f"{name}: no head of {total} does it")
            continue
        fresh = one.right(one.others[:, :, layer, head])
        parts.append(
            f"{name}: {n} of {total} heads do it; the one that does it most (layer {layer + 1}, head {head + 1}) is"
            f" right in {fresh:.0%} of the other 16 sentences, where a coin is in 50%"
        )
    encoder = looked["MiniLM-L6"]
    layer, head = encoder.best
    works = bool(encoder.does.any()) and encoder.right(encoder.others[:, :, layer, head]) >= 0.75
    words = "; ".join(parts) + "."
    if works:
        words += ' What "it" means can be read off that head.'
    else:
        words += (
            " So the pattern is there on the lectures' sentence, in some heads; but an image of one of them is chosen"
            ' after the fact, and that head hardly tells what "it" means elsewhere.'
        )
    words += ' In a decoder "it" cannot know the ending: its weights are the same for both, exactly.'
    some = any(bool(one.does.any()) for one in looked.values())
    return ("holds" if works else "holds partly" if some else "does not hold here"), words


def head_table(looked: dict[str, Looked]) -> Table:
    rows = []
    for name, one in looked.items():
        layer, head = one.best
        votes = one.right(one.others.mean(dim=(2, 3)))
        rows.append(
            [name, one.does.numel(), int(one.does.sum()), one.named,
             one.right(one.others[:, :, layer, head]), votes, one.share]
        )  # fmt: skip
    columns = ["model", "heads", "do it", "most of all", "that head, on 16 other sentences", "mean of all heads, there",
               "weight on both nouns"]  # fmt: skip
    return Table("Heads that go from the first noun to the second as the ending changes", columns, rows)


def lecture_table(looked: dict[str, Looked]) -> Table:
    rows = []
    for name, one in looked.items():
        layer, head = one.best
        tired, wide = one.lecture.flatten(1).mean(dim=1).tolist()
        most = one.lecture[:, layer, head].tolist()
        rows.append([name, tired, wide, *most])
    columns = ["model", "all heads: tired", "wide", "that head: tired", "wide "]
    return Table("Share of the animal in the weight on both nouns, the lectures' sentence", columns, rows)


def draw(looked: dict[str, Looked]) -> Picture:
    with plot(len(looked), width=3.4) as (figure, panels):
        for axes, (name, one) in zip(panels, looked.items(), strict=True):
            axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
            axes.axvline(0.5, color="grey", linestyle=":", linewidth=0.8)
            axes.axhline(0.5, color="grey", linestyle=":", linewidth=0.8)
            axes.scatter(
                one.lecture[0].flatten(), one.lecture[1].flatten(), s=10, alpha=0.6, linewidths=0, rasterized=True
            )
            layer, head = one.best
            if one.does.any():
                axes.scatter(*one.lecture[:, layer, head].tolist(), s=40, facecolors="none", edgecolors="crimson")
            axes.set(xlabel="share of the animal, tired", ylabel="share of the animal, wide", xlim=(0, 1), ylim=(0, 1))
            axes.set_title(name, fontsize=9)
    return Picture(
        figure,
        "A dot a head. Those at the lower right do what is claimed; on the gray line the ending changes nothing; the"
        " ring is the head that does it most.",
    )


if __name__ == "__main__":
    main(CLAIM, run)
