"""The model that a task trains: built from a recipe with a suitable head and the tokenizer's vocabulary; or loaded from
a folder, keeping its head if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer import pretrained, registry
from anyformer.checkpoints.delta import own_tensors
from anyformer.checkpoints.folder import load, load_meta
from anyformer.checkpoints.hf import SENTENCES
from anyformer.checkpoints.resize import select_vocabulary
from anyformer.config import Settings
from anyformer.core.init import materialize
from anyformer.core.positions import LearnedPositions
from anyformer.errors import ConfigError, FolderError
from anyformer.inputs.replaced_tokens import ReplacedTokensInput
from anyformer.inputs.text import TextInput
from anyformer.model import Model
from anyformer.tokenizers.tokenizer import Tokenizer

Fits = Callable[[Settings], bool]


def find_source(given: str | PathLike[str]) -> str:
    """What a user names as the model to train, resolved once: the path of a folder or file (that of a shipped model
    given by its name), or the name of a recipe."""
    path, names = Path(given).expanduser(), registry.recipes()
    if path.exists() or str(given) in names:
        return str(path)
    found = pretrained.find(str(given))
    if found is None:
        hint = registry.name_hint(str(given), [*names, *(model.name for model in pretrained.models())])
        raise ConfigError(f'There is no recipe and no folder "{given}".{hint}')
    return str(found.open())


def is_folder(source: str | PathLike[str]) -> bool:
    """Whether a source that `find_source` gave is a folder (or a file with a model in it), and not a recipe's name."""
    return Path(source).exists()


def recipe_settings(name: str, chosen: Settings | None, fits: Fits, wanted: str) -> Settings:
    """The settings to build from, once it is sure that the recipe can do the work."""
    found = registry.recipe(name)
    if not fits(found.config):
        others = [other for other in registry.recipes() if fits(registry.recipe(other).config)]
        raise ConfigError(
            f'The recipe "{name}" does not fit this task, which needs {wanted}, such as {", ".join(others[:8])}.'
        )
    return found.config if chosen is None else chosen


def build(name: str, config: Settings) -> Model:
    return registry.build_config(registry.recipe(name).family, config, name)


def has_head(*heads: str) -> Fits:
    """Families of text that can take one of these heads."""
    return lambda config: (
        getattr(config, "reads_text", True) and any(head in getattr(config, "uses", ()) for head in heads)
    )


def want_head(model: Model, path: str | PathLike[str], heads: Sequence[str], *, gives: str, task: str) -> None:
    """Raise FolderError if the model in a folder has none of these heads."""
    head = model.config.to_json().get("head")
    if head not in heads:
        has = "without a head" if head is None else f'with the head "{head}"'
        raise FolderError(
            f"{path} holds a {model.family} model {has}, which predicts no {gives}. Fine-tune it:"
            f" anyformer train {task} --recipe {path} --data DATA --out DIR."
        )


def with_vocabulary(config: Settings, tokenizer: Tokenizer) -> Settings:
    """The same settings for a tokenizer's words: the size of the tables, and which ids pad, start and end."""
    pad = tokenizer.pad_id
    start = pad if pad is not None else tokenizer.end_id
    end = tokenizer.end_id
    if getattr(config, "pooling", None) == "end" and tokenizer.encode("")[-1:] == [tokenizer.separator_id]:
        end = tokenizer.separator_id  # a class is read where a text ends, in BERT's form at [SEP]
    ids = {"vocab_size": len(tokenizer), "padding": pad, "decoder_start": start, "end": end}
    changes: dict[str, Any] = {name: value for name, value in ids.items() if name in config.field_names()}
    changes = {name: value for name, value in changes.items() if value is not None or name == "padding"}
    if "target_vocab_size" in config.field_names():
        changes["target_vocab_size"] = None
    for name in config.field_names():
        value = getattr(config, name)
        if isinstance(value, Settings) and "vocab_size" in value.field_names():
            changes[name] = with_vocabulary(value, tokenizer)
        elif isinstance(value, dict) and "vocab_size" in value:  # the sides of an encoder-decoder
            changes[name] = {**value, "vocab_size": len(tokenizer), **({"padding": pad} if "padding" in value else {})}
    if any(isinstance(value, dict) for value in changes.values()) and "decoder_start" in config.field_names():
        # Its decoder is framed as BERT's texts are: it starts from [CLS] and ends in [SEP].
        changes["decoder_start"] = tokenizer.start_id if tokenizer.start_id is not None else start
    return config.replace(**changes)


def load_meta_for(folder: str | PathLike[str], fits: Fits) -> Model:
    """The model that would be taken further, without its weights: what there is to be set, and what its tensors are."""
    return finetune_model(load_meta(folder), fits)


def load_for(
    folder: str | PathLike[str], fits: Fits, wanted: str, chosen: Settings | None = None, words: str | None = None
) -> tuple[Model, Tokenizer]:
    """A folder's model, if it can do the work, in the precision that training wants, and its tokenizer; or, with the
    path of another as `words`, that one, and the model with its words: those that both know keep their vectors."""
    model = finetune_model(load(folder, device="cpu", dtype=torch.float32), fits)
    if not fits(model.config):
        raise FolderError(f"{folder} holds a {model.family} model; this task needs {wanted}.")
    model = with_settings(model, chosen)
    tokenizer = Tokenizer.load(folder)
    check_words(tokenizer, model.config)
    if words is None:
        return model, tokenizer
    settings = model.config.to_json()
    if "vocab_size" not in settings or settings.get("target_vocab_size"):
        raise ConfigError(f"tokenizer.path needs a model with one vocabulary, unlike {model.family}; leave it out.")
    other = Tokenizer.load(words)
    known, kept = tokenizer.engine.get_vocab(), dict.fromkeys(range(len(other)))
    kept.update({i: known.get(piece) for piece, i in other.engine.get_vocab().items()})
    return select_vocabulary(model, with_vocabulary(model.config, other), list(kept.values())), other


def vocab_size(config: Settings) -> int:
    """The rows of the word table."""
    for holder in (config.to_json(), *(value for value in config.to_json().values() if isinstance(value, dict))):
        if "vocab_size" in holder:
            return int(holder["vocab_size"])
    raise ConfigError(f"{type(config).__name__} has no vocabulary; use a recipe for text.")


def check_words(tokenizer: Tokenizer, config: Settings) -> None:
    """An error unless a model has a row for every token that it reads and for every one that it writes."""
    settings = config.to_json()
    tokenizer.check(vocab_size(config))
    decoder = settings["decoder"] if isinstance(settings.get("decoder"), dict) else settings
    written = decoder.get("target_vocab_size") or decoder.get("vocab_size")
    if written is not None:
        tokenizer.target.check(written)


def name_ids(model: Model, tokenizer: Tokenizer) -> None:
    """So that a folder for transformers says how a text begins and ends, where no setting of the family does."""
    fields = model.config.field_names()
    if "language" not in model.heads:
        return
    if "end" not in fields:
        start = tokenizer.start_id if tokenizer.start_id is not None else tokenizer.end_id
        model.origin.hf_config |= {"bos_token_id": start, "eos_token_id": tokenizer.end_id}
    elif tokenizer.start_id is not None and not {"begin", "decoder_start"} & set(fields):
        model.origin.hf_config["bos_token_id"] = tokenizer.start_id


def with_settings(model: Model, config: Settings | None) -> Model:
    """The same weights under other settings, such as dropouts; an error where those want other weights. None: as it
    is."""
    if config is None or config == model.config:
        return model
    fresh = with_config(model, config)
    materialize(fresh, model.device, model.dtype)
    known = own_tensors(model)
    with torch.no_grad():
        for name, place in own_tensors(fresh).items():
            place.copy_(known[name])
    fresh.origin = model.origin
    return fresh.train(model.training)


def with_config(model: Model, config: Settings) -> Model:
    """A model with other settings, without weights yet, once it is sure that it takes those of this one: tensors of the
    same names and shapes."""
    fresh = registry.build_meta(registry.family(model.family), config)
    has, wants = ({name: list(value.shape) for name, value in own_tensors(one).items()} for one in (model, fresh))
    odd = next((name for name in {**has, **wants} if has.get(name) != wants.get(name)), None)
    if odd is None:
        return fresh
    changed = [f"model.{name}" for name in config.field_names() if getattr(config, name) != getattr(model.config, name)]
    raise ConfigError(
        f"{' and '.join(changed)} cannot be changed when a folder is fine-tuned: the shape of {odd} would change from"
        f" {has.get(odd, 'nothing')} to {wants.get(odd, 'nothing')}. Leave it out, or train from scratch."
    )


def with_head(model: Model, keep: bool, **changes: Any) -> Model:
    """The model with another head, freshly drawn, everything else as it is; itself where it has that head already and
    `keep` says that it may stay."""
    config = model.config.replace(**changes)
    if keep and config == model.config:
        return model
    family = registry.family(model.family)
    fresh = registry.build_config(family, config, model.origin.recipe)
    fresh.origin.new = tuple(transfer(dict(model.state_dict()), fresh))
    fresh.to(device=model.device, dtype=model.dtype)
    fresh.origin.hf_config = {
        name: value for name, value in model.origin.hf_config.items() if name not in ("id2label", "label2id")
    }
    # A sentence encoder's files say how it makes its vectors, which this is no longer.
    fresh.origin.files = {name: text for name, text in model.origin.files.items() if not SENTENCES.fullmatch(name)}
    return fresh


def transfer(state: Mapping[str, Tensor], model: Model) -> list[str]:
    """Copy what has the same name and shape; a pooler goes along from head to head. Returns what stayed fresh."""
    pools = {name.partition(".pool.")[2]: value for name, value in state.items() if ".pool." in name}
    left = []
    with torch.no_grad():
        for name, place in model.state_dict().items():
            source = state.get(name)
            if ".pool." in name:
                source = pools.get(name.partition(".pool.")[2])
            elif name.partition(".")[0] in model.heads:
                source = None
            if source is not None and source.shape == place.shape:
                place.copy_(source)
            else:
                left.append(name)
    return left


def finetune_model(model: Model, fits: Fits) -> Model:
    """What a task that wants such settings takes further."""
    return model if fits(model.config) else unwrap_pretrained(model)


def unwrap_pretrained(model: Model) -> Model:
    """What is taken further of a model that was pre-trained as two; others are themselves."""
    take = registry.family(model.family).finetune_model
    return model if take is None else take(model)


def max_positions(model: Model) -> int | None:
    """How many tokens the model's positions can hold; None: any number."""
    limits = [
        inputs.positions.weight.shape[0] - inputs.config.first_position
        for inputs in text_inputs(model)
        if isinstance(inputs.positions, LearnedPositions)
    ]
    limit = getattr(model.config, "length_limit", model.config.to_json().get("max_length"))
    return min(limits, default=limit)


def tells_types(model: Model) -> bool:
    """Whether the model distinguishes token types: it takes token_type_ids and has more than one of them."""
    one = any(inputs.config.types == "own" and inputs.config.n_types < 2 for inputs in text_inputs(model))
    return "token_type_ids" in model.names and not one


def text_inputs(model: Model) -> list[TextInput]:
    """The text inputs of the model's stages."""
    stages = [stage.inputs for stage in model.stages.values()]
    inputs = [one.text if isinstance(one, ReplacedTokensInput) else one for one in stages]
    return [one for one in inputs if isinstance(one, TextInput)]
