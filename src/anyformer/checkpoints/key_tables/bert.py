"""BERT. Old files spell the norms gamma and beta; files of the bare encoder leave out the prefix."""

from __future__ import annotations

from collections.abc import Iterable

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    each_layer,
    strip_prefix,
    weight_and_bias,
    weights_and_biases,
    with_defaults,
)
from anyformer.recipes.bert import BERTConfig

# The feed-forward network of a layer, which most of the kin spell alike.
NETWORK = {"up": "intermediate.dense", "down": "output.dense", "norm": "output.LayerNorm"}
_POOLED = {"base": "embed", "pretraining": "pair", "classify": "classify", "choice": "choice"}

# Settings that BERT's kin spell alike.
FIELDS = (
    *with_defaults(ENCODER, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    ConfigField("max_length", "max_position_embeddings", 512),
    ConfigField("tied", "tie_word_embeddings", True),
    LABELS,
    PROBLEM,
)
TYPES = ConfigField("n_types", "type_vocab_size", 2)
DECODER = (ConfigField("causal", "is_decoder", False), ConfigField("cross_attention", "add_cross_attention", False))
SPELLINGS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
OLD_BUFFERS = r"embeddings\.(position_ids|token_type_ids)$"
_CLASSES = {
    "Model": {"head": "base"},
    "ForMaskedLM": {"head": "masked"},
    "ForSequenceClassification": {"head": "classify", "pooling": "first"},
    "ForTokenClassification": {"head": "tag"},
    "ForQuestionAnswering": {"head": "span"},
    "ForMultipleChoice": {"head": "choice", "pooling": "first"},
}


def classes(name: str, **more: str) -> dict[str, dict[str, str]]:
    """The usual classes of a family, and others; classes("Bert")["BertForMaskedLM"] -> {"head": "masked"}"""
    others = {end: {"head": head} for end, head in more.items()}
    return {f"{name}{end}": ours for end, ours in (_CLASSES | others).items()}


def layers(n: int, theirs: str, cross_attention: bool = False, side: str = "encoder") -> list[Key]:
    block = f"{side}.blocks.{{i}}"
    parts = {"self": "attention", **({"cross": "crossattention"} if cross_attention else {})}
    rows = []
    for ours, name in parts.items():
        rows += weights_and_biases(
            f"{block}.{ours}", f"{theirs}.{name}.self", {role: role for role in ("query", "key", "value")}
        )
        rows += weights_and_biases(f"{block}.{ours}", f"{theirs}.{name}.output", {"out": "dense", "norm": "LayerNorm"})
    return each_layer(n, [*rows, *weights_and_biases(f"{block}.feedforward", theirs, NETWORK)])


def heads(use: str) -> list[Key]:
    """A class of a text, of each choice or each token, or a span."""
    if use == "span":
        return weight_and_bias("span.ends", "qa_outputs")
    return weight_and_bias(f"{use}.classes", "classifier") if use in ("classify", "choice", "tag") else []


def inputs(theirs: str, names: Iterable[str], also: tuple[str, ...] = ()) -> list[Key]:
    """The tables of words, positions and types, and the norm of their sum; `also`: the output's copy of the words."""
    spelled = {"words": "word", "positions": "position", "types": "token_type"}
    rows = [
        Key(
            f"encoder.inputs.{name}.weight",
            f"{theirs}.{spelled[name]}_embeddings.weight",
            also=also if name == "words" else (),
        )
        for name in names
    ]
    return [*rows, *weight_and_bias("encoder.inputs.norm", f"{theirs}.LayerNorm")]


def words(tied: bool, dense: str, norm: str, bias: str, scores: str) -> list[Key]:
    """The head of masked words; the output's bias has two names, of which the untied model uses the second."""
    head = [*weight_and_bias("words.dense", dense), *weight_and_bias("words.norm", norm)]
    if tied:
        return [*head, Key("words.bias", bias, also=(f"{scores}.bias",))]
    return [*head, Key("words.words.weight", f"{scores}.weight"), Key("words.bias", f"{scores}.bias", also=(bias,))]


def keys(config: BERTConfig) -> list[Key]:
    scores, transform = "cls.predictions.decoder", "cls.predictions.transform"
    speaks = config.head in ("pretraining", "masked")
    also = (f"{scores}.weight",) if config.tied and speaks else ()
    rows = [
        *inputs("bert.embeddings", ("words", "positions", "types"), also),
        *layers(config.n_layers, "bert.encoder.layer.{i}", config.cross_attention),
    ]
    if config.head in _POOLED:
        rows += weight_and_bias(f"{_POOLED[config.head]}.pool", "bert.pooler.dense")
    if speaks:
        rows += words(config.tied, f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions.bias", scores)
    if config.head == "pretraining":
        rows += weight_and_bias("pair.classes", "cls.seq_relationship")
    return rows + heads(config.head)


def ignored_keys(config: BERTConfig) -> tuple[str, ...]:
    """The pooler and the heads of pre-training, where this architecture has none of its own; old buffers."""
    unused = [] if config.head in _POOLED else [r"^bert\.pooler\."]
    unused += [r"^cls\.seq_relationship\."] if config.head != "pretraining" else []
    unused += [r"^cls\.predictions\."] if config.head not in ("pretraining", "masked") else []
    return (OLD_BUFFERS, r"^cls\.predictions\.bias$", *unused)


TABLE = KeyTable(
    family="bert",
    model_type="bert",
    architectures=classes("Bert", ForPreTraining="pretraining"),
    fields=(
        *FIELDS,
        *DECODER,
        TYPES,
        ConfigField("vocab_size", "vocab_size", 30522),
        ConfigField("head_dropout", "classifier_dropout", None),
        ConfigField("padding", "pad_token_id", 0),
    ),
    keys=keys,
    required_values={"position_embedding_type": ("absolute",)},
    ignored_fields=frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
        " pooler_type".split()
    ),
    aliases=(*SPELLINGS, (r"^(embeddings|encoder|pooler)\.", r"bert.\1.")),
    ignored_keys=ignored_keys,
    rename=strip_prefix("bert."),
)
