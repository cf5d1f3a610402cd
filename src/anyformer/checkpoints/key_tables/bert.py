"""BERT. Old files spell the norms gamma and beta; files of the bare encoder leave out the prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.checkpoints.key_table import ENCODER, LABELS, PROBLEM, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.names import Names, by_names, prefix_aliases, under

_ROLES = ("query", "key", "value")
LAYER = {
    **{f"self.{role}": f"attention.self.{role}" for role in _ROLES},
    "self.out": "attention.output.dense",
    "self.norm": "attention.output.LayerNorm",
    **{f"cross.{role}": f"crossattention.self.{role}" for role in _ROLES},
    "cross.out": "crossattention.output.dense",
    "cross.norm": "crossattention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward.norm": "output.LayerNorm",
}


def body(prefix: str, layer: dict[str, str] = LAYER, layers: str = "encoder.layer") -> dict[str, Any]:
    """What BERT's kin spell alike: everything below the heads, and the classes of tokens, choices and spans."""
    return {
        "encoder.inputs.words": f"{prefix}.embeddings.word_embeddings",
        "encoder.inputs.positions": f"{prefix}.embeddings.position_embeddings",
        "encoder.inputs.types": f"{prefix}.embeddings.token_type_embeddings",
        "encoder.inputs.norm": f"{prefix}.embeddings.LayerNorm",
        "encoder.inputs.project": f"{prefix}.embeddings_project",
        **under("encoder.blocks.{i}", f"{prefix}.{layers}.{{i}}", layer),
        "*.classes": "classifier",
        "span.ends": "qa_outputs",
    }


def words(dense: str, norm: str, bias: str, scores: str) -> Callable[[Any], dict[str, Any]]:
    """The head of masked words; the output's bias has two names, of which the untied model uses the second."""
    rows = {"words.dense": dense, "words.norm": norm, "words.words": scores}
    both = (bias, f"{scores}.bias")
    return lambda config: {**rows, "words.bias": both if config.tied else both[::-1]}


def with_words(names: Names, words: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Names]:
    return lambda config: {**names, **words(config)}


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


_TRANSFORM = "cls.predictions.transform"
WORDS = words(f"{_TRANSFORM}.dense", f"{_TRANSFORM}.LayerNorm", "cls.predictions.bias", "cls.predictions.decoder")
NAMES = {**body("bert"), "*.pool": "bert.pooler.dense", "pair.classes": "cls.seq_relationship"}

TABLE = KeyTable(
    family="bert",
    model_type="bert",
    architectures=classes("Bert", ForPreTraining="pretraining", ForNextSentencePrediction="next_sentence"),
    fields=(
        *FIELDS,
        *DECODER,
        TYPES,
        ConfigField("vocab_size", "vocab_size", 30522),
        ConfigField("head_dropout", "classifier_dropout", None),
        ConfigField("padding", "pad_token_id", 0),
    ),
    **by_names("bert", with_words(NAMES, WORDS), prefix="bert", aliases=(*SPELLINGS, *prefix_aliases("bert", NAMES))),
    required_values={"position_embedding_type": ("absolute",)},
    ignored_fields=frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
        " pooler_type".split()
    ),
)
