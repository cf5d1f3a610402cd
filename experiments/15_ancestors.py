"""Claim 15: recurrent, convolutional, fully connected, state-space and attention layers on equal data.

python experiments/15_ancestors.py
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from models import parameters
from real import Taught, data, teach

CLAIM = Claim(
    number=15,
    name="ancestors",
    title="Five ways to put a token into context, on equal data",
    items=("000-1-11", "003-16-04", "004-3-02", "004-4-01"),
    says="Recurrent, convolutional, fully connected and attention layers are ways to put a token into its context."
    " Attention sees all tokens at once and in one layer; a recurrent layer goes through them step by step; a"
    " convolution sees its neighbors; a fully connected layer knows positions and not words. So"
    " attention should do it best.",
    did="The same words, norms, residual connections and heads around each layer, 64 wide, with about 90,000"
    " parameters beside the word table: an LSTM (both ways as an encoder), dilated convolutions, an"
    " MLP-Mixer, Mamba, and attention (BERT as an encoder, GPT-2 as a decoder). Each is trained from"
    " scratch on the same rows in the same order with the same tokenizer, batch, learning rate and number"
    " of steps: classes of sentences (SST-2, 6,885 sentences, accuracy on dev), tags of words (CoNLL-2003,"
    " the first 4,000 sentences, entity F1 on the first 1,000 of testa) and the next word (classic stories,"
    " 1.5 MB, perplexity of a token on the last tenth). No setting was tuned for any of them.",
    seeds=(1, 2),
)
WIDTH, ROWS, LENGTH = 64, 32, 48
ATTENTION: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_hidden": 256, "max_length": 64, "dropout": 0.0}
ATTENTION |= {"attention_dropout": 0.0}
SIZES: dict[str, dict[str, Any]] = {
    "LSTM": {"n_layers": 4},
    "convolutions": {"n_layers": 8, "n_blocks": 4, "kernel": 7},
    "MLP-Mixer": {"n_layers": 2, "d_hidden": 256, "max_length": 64},
    "Mamba": {"n_layers": 3},
    "attention": ATTENTION,
}
RECIPES = {"LSTM": "bilstm-tiny", "convolutions": "textcnn-tiny", "MLP-Mixer": "mlp-mixer-tiny", "Mamba": "mamba-tiny"}
TASKS = {"classify-text": "accuracy", "tag": "f1", "generate": "perplexity"}


COLUMNS = (
    "weights of the encoder",
    "accuracy on SST-2",
    "entity F1",
    "weights of the decoder",
    "perplexity",
    "seconds for 100 steps",
)
SHOWN = COLUMNS[1], COLUMNS[2], COLUMNS[4]


def run(options: Options) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = prepare(folder, options)
        pace = Pace(len(SIZES) * len(TASKS) * len(options.seeds))
        found = {layer: measure(layer, folder, files, options, pace) for layer in SIZES}
    verdict, words = judge(found)
    rows = [[name, *(one[key] for key in COLUMNS)] for name, one in found.items()]
    return Found(
        tables=[Table("Equal data, equal steps", ["layer", *COLUMNS], rows)],
        pictures=[draw(found)],
        verdict=verdict,
        words=words,
    )


def prepare(folder: Path, options: Options) -> dict[str, tuple[Path, Path]]:
    """Task -> the files to train on and to evaluate. Tokenizers, learned from the former, lie in folders of the task's
    name."""
    stories = folder / "stories.txt"
    with gzip.open(data("classic_stories/train.txt.gz"), "rt", encoding="utf-8") as file:
        text = file.read(options.pick(1_500_000, 60_000))
    cut = text.rfind("\n", 0, len(text) * 9 // 10) + 1
    stories.write_text(text[:cut], encoding="utf-8")
    (folder / "rest.txt").write_text(text[cut : text.rfind("\n") + 1], encoding="utf-8")
    tags = (
        sentences(folder / "train.conll", "eng.train", options.pick(4000, 80)),
        sentences(folder / "testa.conll", "eng.testa", options.pick(1000, 30)),
    )
    files = {
        "classify-text": (data("sst2/train_sentences.tsv"), data("sst2/dev.tsv")),
        "tag": tags,
        "generate": (stories, folder / "rest.txt"),
    }
    for task, (learned, _) in files.items():
        framed = task != "generate"
        words = af.Tokenizer.train([learned], kind="wordpiece" if framed else "bpe", vocab_size=2000, bert=framed)
        words.save(folder / task)
    return files


def sentences(place: Path, name: str, count: int) -> Path:
    """The first sentences of a file of CoNLL-2003."""
    with gzip.open(data(f"conll2003/{name}.gz"), "rt", encoding="utf-8") as file:
        blocks = [block for block in file.read().split("\n\n") if block.strip() and "-DOCSTART-" not in block]
    place.write_text("\n\n".join(blocks[:count]) + "\n\n", encoding="utf-8")
    return place


def measure(
    layer: str, folder: Path, files: Mapping[str, tuple[Path, Path]], options: Options, pace: Pace
) -> dict[str, Any]:
    scores: dict[str, list[float]] = {task: [] for task in TASKS}
    sizes: dict[str, int] = {}
    seconds, steps = 0.0, 0
    for seed in options.seeds:
        for task, figure in TASKS.items():
            made = learn(layer, task, folder, files[task], seed, options, pace)
            last = made.course.last[figure]
            scores[task].append(last)
            sizes[task] = weights(made.task.model)
            seconds, steps = seconds + made.course.clock[-1], steps + len(made.course.clock)
    values = (
        sizes["tag"],
        spread(scores["classify-text"]),
        spread(scores["tag"]),
        sizes["generate"],
        spread(scores["generate"]),
        100 * seconds / steps,
    )
    return dict(zip(COLUMNS, values, strict=True))


def weights(model: Model) -> int:
    """Parameters of the blocks."""
    (stage,) = model.stages.values()
    assert stage.stack is not None
    return sum(parameters(block) for block in stage.stack.blocks)


def learn(
    layer: str, task: str, folder: Path, files: tuple[Path, Path], seed: int, options: Options, pace: Pace
) -> Taught:
    recipe = RECIPES.get(layer, "gpt2-tiny" if task == "generate" else "bert-tiny")
    size = {"d_model": WIDTH, **SIZES[layer]}
    if layer == "LSTM" and task == "generate":
        size["n_layers"] = 3  # one direction is as wide as both
    steps = options.pick(200, 2)
    given = {f"model.{name}": value for name, value in size.items()}
    given |= {"train.steps": steps, "train.batch_size": ROWS, "train.lr": 2e-3, "train.warmup_steps": steps // 10}
    given |= {"tokenizer.path": str(folder / task), "data.max_length": LENGTH}
    return teach(task, recipe, *files, seed=seed, pace=pace, label=f"{layer}: {task}", **given)


def judge(found: Mapping[str, Mapping[str, Any]]) -> tuple[Verdict, str]:
    """Attention is best if no other layer is better by more than the spread of the seeds."""
    said, first = [], 0
    for name in SHOWN:
        sign = -1 if name == "perplexity" else 1
        order = sorted(found, key=lambda layer: -sign * found[layer][name].mean)
        ours, best = found["attention"][name], found[order[0]][name]
        within = abs(ours.mean - best.mean) <= max(ours.deviation, best.deviation)
        first += within
        said.append(f"{name}: {', '.join(f'{layer} {found[layer][name]}' for layer in order)}")
    slow = max(found, key=lambda layer: found[layer][COLUMNS[5]])
    words = (
        "From best to worst, "
        + "; ".join(said)
        + f". Slowest on one processor core: {slow}. With so little data and so"
        f" few steps attention is best, or within the spread of the seeds, in {first} of {len(SHOWN)} tasks; all of"
        " these layers can do each task, which is what the lectures' comparison needs, and which is best is a question"
        " of data and size."
    )
    verdict: Verdict = "holds" if first == len(SHOWN) else "holds partly" if first else "does not hold here"
    return verdict, words


def draw(found: Mapping[str, Mapping[str, Any]]) -> Picture:
    with plot(columns=len(SHOWN)) as (figure, panels):
        for axes, name in zip(panels, SHOWN, strict=True):
            values: list[Spread] = [one[name] for one in found.values()]
            axes.barh(list(found), [one.mean for one in values], xerr=[one.deviation for one in values])
            axes.invert_yaxis()
            axes.set_title(name)
    return Picture(figure, "The same data, steps and settings for each layer; lines are the deviation over the seeds.")


if __name__ == "__main__":
    main(CLAIM, run)
