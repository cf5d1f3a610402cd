"""What a family's table says about the Hugging Face form of it: fields, tensor names, and what to leave aside.

A table is data and runs both ways. Our names are the brief ones of the model's own parameters:
"encoder.blocks.0.self.query.weight" is a part of the matrix encoder.blocks.0.self.qkv.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import FusedLinear
from anyformer.errors import ConfigError, nearest


@dataclass(frozen=True)
class Key:
    """One tensor under both names. "reshape": theirs has `shape`, ours the same numbers in another one. "rows": their
    rows, seen as `shape`, come in another order; `axes` says which of those axes stands where in ours.
    """

    ours: str
    theirs: str
    op: Literal["same", "transpose", "reshape", "rows"] = "same"
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    optional: bool = False  # may be absent, and is not written: a formula fills it
    also: tuple[str, ...] = ()  # other names under which files hold the same tensor (tied weights)

    def expected(self, ours: Tensor) -> tuple[int, ...]:
        if self.op == "reshape":
            return self.shape
        return tuple(reversed(ours.shape)) if self.op == "transpose" else tuple(ours.shape)

    def read(self, theirs: Tensor, ours: Tensor) -> Tensor:
        if self.op == "rows":
            return self._reorder(theirs, self.shape, self.axes)
        return theirs.T if self.op == "transpose" else theirs.reshape(ours.shape)

    def write(self, ours: Tensor) -> Tensor:
        if self.op == "rows":
            back = tuple(self.axes.index(axis) for axis in range(len(self.axes)))
            return self._reorder(ours, tuple(self.shape[axis] for axis in self.axes), back)
        return ours.T if self.op == "transpose" else ours.reshape(self.expected(ours))

    @staticmethod
    def _reorder(x: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
        return (
            x.reshape(*shape, *x.shape[1:]).permute(*axes, *range(len(axes), len(axes) + x.dim() - 1)).reshape(x.shape)
        )


def identity(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class ConfigField:
    """A setting under both names, with the value that Hugging Face assumes where a config leaves it out."""

    ours: str
    theirs: str
    default: Any
    read: Callable[[Any], Any] = identity
    write: Callable[[Any], Any] = identity


_ACTIVATION_NAMES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
}


def read_activation(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError("an activation is given by its name")
    ours = _ACTIVATION_NAMES.get(name, name)
    if ours not in ACTIVATIONS or name == "gelu_tanh":
        known = sorted({*ACTIVATIONS, *_ACTIVATION_NAMES} - {"gelu_tanh"})
        raise ConfigError(f'"{name}" is not a supported activation.{nearest(str(name), known)}')
    return str(ours)


def write_activation(name: str) -> str:
    return "gelu_new" if name == "gelu_tanh" else name


def activation(theirs: str, default: str, ours: str = "activation") -> ConfigField:
    return ConfigField(ours, theirs, default, read_activation, write_activation)


LABELS = ConfigField(
    "n_labels",
    "id2label",
    {"0": "LABEL_0", "1": "LABEL_1"},
    read=len,
    write=lambda n: {str(i): f"LABEL_{i}" for i in range(n)},
)
PROBLEM = ConfigField("problem", "problem_type", None)


def pair(value: Any) -> tuple[int, int]:
    """224 -> (224, 224)"""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def unpair(value: tuple[int, int]) -> int | list[int]:
    return value[0] if value[0] == value[1] else list(value)


def mean_pooling(otherwise: str) -> ConfigField:
    """What is classified, where a file says only whether it is the mean."""
    return ConfigField(
        "pooling",
        "use_mean_pooling",
        True,
        lambda mean: "mean" if mean else otherwise,
        lambda pooling: pooling == "mean",
    )


def first(value: Any) -> Any:
    """Some folders have several ids for the end."""
    return value[0] if isinstance(value, list) else value


# What most encoders of text and of images say under the same names.
ENCODER = (
    ConfigField("n_layers", "num_hidden_layers", 12),
    ConfigField("d_model", "hidden_size", 768),
    ConfigField("n_heads", "num_attention_heads", 12),
    ConfigField("d_hidden", "intermediate_size", 3072),
    activation("hidden_act", "gelu"),
    ConfigField("norm_eps", "layer_norm_eps", 1e-12),
    ConfigField("dropout", "hidden_dropout_prob", 0.0),
    ConfigField("attention_dropout", "attention_probs_dropout_prob", 0.0),
)
PICTURES = (
    ConfigField("image_size", "image_size", 224, pair, unpair),
    ConfigField("patch_size", "patch_size", 16, pair, unpair),
    ConfigField("n_channels", "num_channels", 3),
)


def with_defaults(
    fields: Iterable[ConfigField], without: tuple[str, ...] = (), **defaults: Any
) -> tuple[ConfigField, ...]:
    """Another family's fields: some left out, by our names, and some with other values assumed, by theirs."""
    kept = [entry for entry in fields if entry.ours not in without]
    return tuple(replace(entry, default=defaults.get(entry.theirs, entry.default)) for entry in kept)


def decoder_classes(name: str, language: str = "ForCausalLM", **fixed: Any) -> dict[str, dict[str, Any]]:
    """The classes of a decoder, and our settings that follow from them; `fixed` follow from all of them."""
    heads = {language: {"head": "language"}, "Model": {"head": "base"}}
    heads |= {"ForSequenceClassification": {"head": "classify", "pooling": "last"}}
    return {f"{name}{end}": {**fixed, **head} for end, head in heads.items()}


@dataclass(frozen=True)
class KeyTable:
    """`architectures`: Hugging Face class -> our fields that follow from it.

    `required_values`: fields that change the results, with the values that are supported. `ignored_fields`: fields that
    do not change the results of these classes. `aliases`: regular expressions that map older or newer names to
    `Key.theirs`. `ignored_keys`: tensors of other heads or old versions that this architecture does not use.
    `rename`: the last step when writing, for classes that leave out a prefix.
    """

    family: str
    model_type: str
    architectures: Mapping[str, Mapping[str, Any]]
    fields: tuple[ConfigField, ...]
    keys: Callable[[Any], list[Key]]
    required_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored_fields: frozenset[str] = frozenset()
    aliases: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    ignored_keys: Callable[[Any], tuple[str, ...]] = lambda config: ()
    rename: Callable[[Any, str], str] = lambda config, name: name
    upgrade_config: Callable[[dict[str, Any]], dict[str, Any]] = identity  # theirs, brought to today's form
    # Fields to write that follow from several of ours, given what the folder came with; None leaves one out.
    extra_fields: Callable[[Any, dict[str, Any]], dict[str, Any]] = lambda config, today: {}
    nulls: frozenset[str] = frozenset()  # extras that are written as null: left out, the class assumes a number
    duplicate_keys: Callable[[Any], Mapping[str, str]] = (
        lambda config: {}
    )  # written name -> the name whose tensor it repeats
    generated_tensors: Callable[[Any], Mapping[str, Tensor]] = (
        lambda config: {}
    )  # written name -> a tensor that a formula gives

    # A model made of others: what their names begin with -> their own tables and settings.
    sides: Callable[[Any], Mapping[str, tuple[KeyTable, Any]]] = lambda config: {}

    def canonical(self, config: Any, name: str) -> str:
        for side, (table, own) in self.sides(config).items():
            if name.startswith(f"{side}."):
                return f"{side}.{table.canonical(own, name.removeprefix(f'{side}.'))}"
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name


# Fields of every Hugging Face config that say nothing about the numbers of a forward pass, or that only set how
# `generate` behaves (those are kept and written back).
GENERAL = frozenset(
    """_name_or_path _num_labels _commit_hash _attn_implementation architectures bad_words_ids begin_suppress_tokens
    bos_token_id chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
    dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range is_encoder_decoder
    label2id length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id prefix
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version typical_p use_bfloat16 use_cache attn_implementation
    sbert_ce_default_activation_function sentence_transformers transformers.js_config unsloth_fixed unsloth_version
    xla_device""".split()
)
# Fields of every config that say something only where they differ from what is assumed, for families that do not read
# them: nothing is pruned; a model that writes nothing has no output to tie to its words.
USUAL: Mapping[str, Any] = {"pruned_heads": {}, "tie_word_embeddings": True}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its brief name; fused ones by the names of their roles too."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            found[f"{path}.{name}"] = tensor
            if isinstance(module, FusedLinear):
                parent = path.rpartition(".")[0]
                for role in module.roles:
                    found[f"{parent}.{role}.{name}"] = tensor.detach()[module.slice(role)]
    return found


def each_layer(n: int, keys: Iterable[Key]) -> list[Key]:
    """Rows written once with {i}, for every layer."""
    return [replace(key, ours=key.ours.format(i=i), theirs=key.theirs.format(i=i)) for i in range(n) for key in keys]


def weight_and_bias(ours: str, theirs: str, op: Literal["same", "transpose"] = "same") -> list[Key]:
    """weight and bias"""
    return [Key(f"{ours}.weight", f"{theirs}.weight", op), Key(f"{ours}.bias", f"{theirs}.bias")]


def weights_and_biases(ours: str, theirs: str, names: Mapping[str, str]) -> list[Key]:
    """weight and bias of several pieces: ours -> theirs"""
    return [key for mine, other in names.items() for key in weight_and_bias(f"{ours}.{mine}", f"{theirs}.{other}")]


def vectors(ours: str, theirs: str, n: int, width: int) -> Key:
    """`n` vectors that their file keeps as a batch of one."""
    return Key(ours, theirs, "reshape", (1, n, width))


def lm_head_keys(tied: bool, words: str, output: str = "lm_head.weight") -> list[Key]:
    """A decoder's table of words and its output, which may be the same tensor."""
    table = "decoder.inputs.words.weight"
    if tied:
        return [Key(table, words, also=(output,))]
    return [Key(table, words), Key("language.words.weight", output)]


def without_key_bias(rows: Iterable[Key]) -> list[Key]:
    """Their keys have no bias, and ours makes no difference: it adds the same number to all scores of a query."""
    return [replace(key, optional=key.ours.endswith("key.bias")) for key in rows]


def strip_prefix(prefix: str) -> Callable[[Any, str], str]:
    """A `rename` for families whose model without a head leaves out the prefix."""
    return lambda config, name: name.removeprefix(prefix) if config.head == "base" else name
