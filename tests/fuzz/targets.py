"""What is fuzzed: how each seed is made, and what a user would do with it once it is damaged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

import anyformer as af
from anyformer.generation.options import SAMPLING
from anyformer.tasks import find
from anyformer.tokenizers.components import GPT4
from tests.fuzz import seeds
from tests.fuzz.seeds import TEXTS
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

FEW = 50  # rows of a damaged file that are answered; all are read
SECRET = "the quick secret 8d1f"  # beside each damaged folder, and in nothing that is written


@dataclass(frozen=True)
class Target:
    """`make` writes a valid seed into a folder. `act` uses a damaged copy; `fixed` is a folder that stays whole."""

    name: str
    make: Callable[[Path, Path], None]
    act: Callable[[Path, Path, Random], None]
    quick: bool = False  # part of the minute in the test suite
    refused: bool = False  # whether the seed is refused as it is


class LeakError(AssertionError):
    """Content from outside of the folder was written into an export."""


def attempts(*steps: Callable[[], Any]) -> None:
    """Every step, even where one before it was refused; then the first refusal."""
    refused: list[af.Error] = []
    for step in steps:
        try:
            step()
        except af.Error as error:
            check_message(error)
            refused.append(error)
    if refused:
        raise refused[0]


def check_message(error: af.Error) -> None:
    text = str(error)
    text.encode()
    assert text, "an error without a message"
    assert len(text) <= 400, f"a message of {len(text)} characters: {text[:300]}"
    odd = [letter for letter in text if not letter.isprintable()]
    assert not odd, f"a message with {odd[0]!r}: {text[:300]!r}"


# Model folders.


def use_model(folder: Path, recipe: str, hf: bool = True) -> None:
    """Loaded, run, asked to write, and exported in both forms."""
    model = af.load(next((file for end in ("gguf", "pt") for file in folder.glob(f"*.{end}")), folder))
    batch = training_batch(recipe) if recipe else {"input_ids": torch.tensor([[1, 2, 3]])}

    def speak() -> None:
        if "input_ids" in model.names and "language" in model.heads and "labels" in batch and "trocr" not in recipe:
            given = {name: value for name, value in batch.items() if name != "labels"}
            model.generate(**given, **brief(model.origin.generation))

    def write(format: str) -> None:
        out = folder.parent / f"out-{format}"
        model.save(out, format=format)
        for file in out.rglob("*"):
            if file.is_file() and SECRET.encode() in file.read_bytes():
                raise LeakError(f"{file.name} holds what lies outside of the folder")

    with torch.no_grad():
        attempts(lambda: model(**batch), speak, lambda: write("anyformer"), lambda: write("hf") if hf else None)


def brief(options: dict[str, Any]) -> dict[str, Any]:
    """A long answer is no fault, and takes long: whoever asks for one gets a short one."""
    long = [options.get(name) for name in ("max_new_tokens", "max_length", "min_new_tokens", "min_length")]
    return {"max_new_tokens": 3, "min_new_tokens": 0} if any(type(n) is int and n > 50 for n in long) else {}


def use_words(folder: Path) -> None:
    pattern = GPT4 if any(folder.glob("*.tiktoken")) else None
    words = af.Tokenizer.load(next(folder.glob("*.gguf"), folder), pattern=pattern)

    def talk() -> None:
        if words.chat_template is not None:
            words.chat([{"role": "user", "content": "the cat"}])

    attempts(
        lambda: words.decode(words.encode("the cat sat, é 🙂")),
        lambda: words([*TEXTS[:2], "the"]),
        talk,
        lambda: words.save(folder.parent / "words"),
    )


def folder_target(name: str, make: Callable[[Path], None], recipe: str, *, words: bool = False, quick: bool) -> Target:
    hf = not recipe or _has_hf(recipe)

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        attempts(lambda: use_model(folder, recipe, hf), lambda: use_words(folder) if words else None)

    return Target(name, lambda folder, fixed: make(folder), act, quick)


def folders() -> Iterator[Target]:
    common = ("gpt2-tiny", "bert-tiny", "t5-tiny", "vit-tiny", "llama-tiny", "detr-tiny", "clip-tiny", "mamba-tiny")
    for recipe in tiny_recipes():
        quick = recipe in common
        yield folder_target(f"folder/own/{recipe}", seeds.save_own(recipe), recipe, quick=recipe == common[0])
        if _has_hf(recipe):
            yield folder_target(f"folder/hf/{recipe}", seeds.save_hf(recipe), recipe, quick=quick)
    yield folder_target("folder/sharded", seeds.sharded, "gpt2-tiny", words=True, quick=True)
    yield Target(
        "folder/adapter",
        lambda folder, fixed: seeds.adapter(folder, fixed / "base"),
        lambda folder, fixed, chance: use_model(folder, "gpt2-tiny"),
        quick=True,
    )
    yield Target(
        "folder/difference",
        lambda folder, fixed: seeds.difference(folder, fixed / "base"),
        lambda folder, fixed, chance: use_model(folder, ""),
        quick=True,
    )
    yield folder_target("folder/torch", seeds.torch_shards, "gpt2-tiny", quick=True)
    yield folder_target("folder/whisper", seeds.whisper, "whisper-tiny", quick=True)
    yield folder_target("folder/gguf", seeds.gguf, "", words=True, quick=True)
    yield Target(
        "folder/sentences",
        lambda folder, fixed: seeds.sentences(folder),
        lambda folder, fixed, chance: af.task("embed", folder)(TEXTS[:2]),
        quick=True,
    )
    for name, files in seeds.vocabularies().items():
        yield Target(
            f"words/{name}",
            lambda folder, fixed, files=files: seeds.write(folder, files),  # type: ignore[misc]
            lambda folder, fixed, chance: use_words(folder),
            quick=True,
        )


def _has_hf(recipe: str) -> bool:
    from anyformer.checkpoints.key_tables import TABLES
    from anyformer.registry import recipe as find_recipe

    family = find_recipe(recipe).family.name
    return recipe != "resnet-tiny" and any(table.family == family for table in TABLES.values())


# Data files, and the folders of models that were made for them.


@cache
def ready(name: str, model: Path) -> Any:
    return af.task(seeds.data()[name][0], model)


def data_target(name: str, quick: bool) -> Target:
    task, recipe, file, files, settings = seeds.data()[name]

    def make(folder: Path, fixed: Path) -> None:
        seeds.write(folder, files)
        train(task, recipe, folder / file, fixed / "model", settings)

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        rows = find(task).read(folder / file)
        kept = chance.random() < 0.7
        if kept:
            few = (
                rows if len(rows) <= FEW else rows.select(range(FEW))
            )  # an answer for each of many takes long, rightly
            ready(name, fixed / "model").evaluate(few)
        else:
            begin(task, recipe, rows, settings)

    return Target(f"data/{name}", make, act, quick)


def train(task: str, recipe: str, data: Path, out: Path, settings: dict[str, Any], *, resume: bool = False) -> None:
    """A step; one more where a run is resumed."""
    size = {"steps": 1 + resume, "batch_size": 4, "device": "cpu", "resume": resume}
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        af.train(task, recipe=recipe, data=data, out=out, **size, **settings)


def begin(task: str, recipe: str, rows: Any, settings: dict[str, Any]) -> None:
    """As training begins: what the data tells is read from it, and a batch goes through the model."""
    from anyformer.data.settings import TokenizerSettings
    from anyformer.tasks.base import TaskSetup

    size = settings.get("tokenizer.vocab_size", 8000)
    made = find(task).begin(recipe, rows, setup=TaskSetup(tokenizer=TokenizerSettings(vocab_size=size)))
    examples = made.prepare(rows)
    batch = next(iter(made.plan(examples, made.batch).global_batches(0)), None)
    if batch is not None:
        generator = torch.Generator().manual_seed(0)
        made.loss(made.ready(made.collate(made.gather(examples, batch), generator), generator))


def task_target(name: str, quick: bool) -> Target:
    """The folder of a trained task, damaged, on something whole."""
    task, recipe, file, files, settings = seeds.data()[name]

    def make(folder: Path, fixed: Path) -> None:
        seeds.write(fixed, files)
        train(task, recipe, fixed / file, folder, settings)
        for path in folder.iterdir():  # what a run leaves beside the model
            if path.is_dir() and not (path / "config.json").exists():
                shutil.rmtree(path)

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        loaded: Any = af.task(task, folder)
        loaded.evaluate(find(task).read(fixed / file))

    return Target(f"task/{name}", make, act, quick)


def run_target(name: str) -> Target:
    """The folder of a run, damaged, that is to go on."""
    task, recipe, file, files, settings = seeds.data()[name]

    def make(folder: Path, fixed: Path) -> None:
        seeds.write(fixed, files)
        train(task, recipe, fixed / file, folder, settings)

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        train(task, recipe, fixed / file, folder, settings, resume=True)

    return Target(f"run/{name}", make, act, quick=True)


def data() -> Iterator[Target]:
    yield run_target("tsv")
    for name in seeds.data():
        yield data_target(name, quick=name not in ("pairs", "lines"))
    for name in ("tsv", "tag", "squad", "pairs", "embed", "table", "points", "picture-npz", "coco", "coco-joints",
                 "coco-outlines", "captions", "lines", "sound-zip", "clips"):  # fmt: skip
        yield task_target(name, quick=name in ("tsv", "table", "coco"))


# Options of generation.

OPTIONS = {
    "max_new_tokens": 3, "min_new_tokens": 1, "num_beams": 2, "num_return_sequences": 1, "do_sample": False,
    "temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0, "length_penalty": 1.0,
    "early_stopping": False, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "no_repeat_ngram_size": 0, "bad_words_ids": [[7], [8, 9]], "suppress_tokens": [3], "begin_suppress_tokens": [4],
    "forced_bos_token_id": None, "forced_eos_token_id": None, "eos_token_id": [1], "pad_token_id": 0, "seed": 3,
    "stop_strings": None, "num_beam_groups": 1, "diversity_penalty": 0.0, "renormalize_logits": False,
    "prompt_lookup_num_tokens": 0, "use_cache": True, "max_length": None, "return_dict_in_generate": False,
}  # fmt: skip


@cache
def whole_model(path: Path) -> af.Model:
    return af.load(path)


def options_target(recipe: str) -> Target:
    def make(folder: Path, fixed: Path) -> None:
        seeds.save_own(recipe)(fixed / "model")
        folder.mkdir(exist_ok=True)
        (folder / "options.json").write_text(json.dumps(OPTIONS))

    def act(folder: Path, fixed: Path, chance: Random) -> None:
        file = folder / "options.json"
        try:
            given = json.loads(file.read_bytes() if file.is_file() and file.stat().st_size < 2**20 else b"")
        except (ValueError, OSError, RecursionError):
            return  # not what is tried here
        if not isinstance(given, dict):
            return
        sampled = {"do_sample": True, "num_beams": 1} if chance.random() < 0.4 else {}
        left = () if sampled else SAMPLING
        some = {name for name in OPTIONS if name not in left and chance.random() < 0.4} - sampled.keys()
        kept = {name: given[name] for name in given if name in some or given[name] != OPTIONS.get(name)}
        prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
        wanted = {"max_new_tokens": 3, **sampled, **kept}
        if brief(wanted):
            wanted = {n: v for n, v in wanted.items() if n not in ("max_length", "min_length")} | brief(wanted)
        whole_model(fixed / "model").generate(prompt, **wanted)

    return Target(f"options/{recipe}", make, act, quick=True)


def options() -> Iterator[Target]:
    yield options_target("gpt2-tiny")
    yield options_target("transformer-tiny")


def every() -> dict[str, Target]:
    from tests.fuzz.requests import explorer

    found = [*folders(), *data(), *options(), *explorer()]
    return {target.name: target for target in found}
