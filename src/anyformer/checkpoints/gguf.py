"""GGUF files, llama.cpp's form of a model: settings, weights (often quantized) and vocabulary in one file.

The `gguf` package undoes the quantization; here llama.cpp's names become ours. Weights are unpacked a few rows at a
time into the place where they stay, so that reading needs little more memory than the model itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from anyformer import registry
from anyformer.checkpoints.files import StoredTensor, check_fit, check_layers
from anyformer.checkpoints.hf import main_dtype
from anyformer.checkpoints.key_table import Key, named_tensors
from anyformer.checkpoints.key_tables import TABLES
from anyformer.core.init import materialize
from anyformer.core.rope import RopeConfig
from anyformer.errors import ConfigError, FolderError, WeightsError, nearest
from anyformer.gguf import GGUF, GGUFTensor, open_gguf
from anyformer.model import Model
from anyformer.recipes.llama import LlamaConfig
from anyformer.schema import Range, check_fields

ROWS = 2**20  # numbers unpacked at a time
FACTORS, MAX_PAIRS = "rope_freqs.weight", 4096

# Types of tensors, and what they are in memory; all quantized ones become single precision.
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTIZED = tuple(
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_S IQ1_M"
    " TQ1_0 TQ2_0".split()
)

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True)
class GGUFArchitecture:
    """An architecture of llama.cpp's: our family, what it has besides, whether its heads lie interleaved, and the
    layers of the one size whose scores are divided by the root of d_model / n_heads instead of d_head."""

    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False
    by_width: int | None = None


_GEMMA: Mapping[str, Any] = {"norm": "rms_offset", "activation": "gelu_tanh", "scale_embedding": True}
_SANDWICH = {**_GEMMA, "norm_order": "sandwich"}
ARCHITECTURES = {
    "llama": GGUFArchitecture("llama", interleaved=True),
    "qwen2": GGUFArchitecture("qwen2", {"qkv_bias": True}),
    "qwen3": GGUFArchitecture("qwen3", {"qk_norm": True}),
    "gemma": GGUFArchitecture("gemma", _GEMMA),
    "gemma2": GGUFArchitecture("gemma2", {**_SANDWICH, "windowed": (True, False)}, by_width=46),
    "gemma3": GGUFArchitecture(
        "gemma3", {**_SANDWICH, "qk_norm": True, "windowed": (True,) * 5 + (False,)}, by_width=62
    ),
}
LOCAL_BASE = 10_000.0  # of Gemma 3's rotation in layers with a window
# Fields under the architecture's name: ours, or None for those that follow from others.
_FIELDS = {
    "block_count": "n_layers",
    "context_length": "max_length",
    "embedding_length": "d_model",
    "feed_forward_length": "d_hidden",
    "attention.head_count": "n_heads",
    "attention.head_count_kv": "n_kv_heads",
    "attention.key_length": "d_head",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "attention.sliding_window": "window",
    "attn_logit_softcapping": "score_cap",
    "final_logit_softcapping": "logit_cap",
    "attention.value_length": None,
    "rope.freq_base": None,
    "rope.dimension_count": None,
    "rope.scaling.type": None,
    "rope.scaling.factor": None,
    "rope.scaling.original_context_length": None,
    "vocab_size": None,
}
_COUNT, _POSITIVE = Annotated[int, Range(1, 2**24)], Annotated[float, Range(above=0)]
_SCHEMA: Mapping[str, Any] = {
    **dict.fromkeys(("embedding_length", "feed_forward_length", "vocab_size", "rope.dimension_count"), _COUNT),
    **{f"attention.{name}": _COUNT for name in ("head_count", "head_count_kv", "key_length", "value_length")},
    **dict.fromkeys(("context_length", "rope.scaling.original_context_length"), Annotated[int, Range(1, 2**31 - 1)]),
    **dict.fromkeys(("rope.freq_base", "rope.scaling.factor"), _POSITIVE),
    "block_count": Annotated[int, Range(1, 10_000)],
    "attention.layer_norm_rms_epsilon": Annotated[float, Range(least=0)],
    "attention.sliding_window": _COUNT,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _POSITIVE),
    "rope.scaling.type": str,
}
_IDS = dict.fromkeys(("tokenizer.ggml.padding_token_id", "tokenizer.ggml.eos_token_id"), int)


def load_gguf(file: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Model:
    source = open_gguf(file)
    kind = _kind(source.fields, file)
    settings, stored = _read(source, kind, file)
    model = registry.build_meta(registry.family(kind.family), settings)
    keys = _keys(settings, kind)
    _check(keys, stored, named_tensors(model), file)
    materialize(model, device, dtype if dtype is not None else main_dtype([stored[key.theirs] for key in keys], file))
    places = named_tensors(model)
    with torch.no_grad():
        for key in keys:
            _unpack(source, source.tensors[key.theirs], key, places[key.ours], file)
            if settings.norm == "rms_offset" and "norm" in key.ours:
                places[key.ours].sub_(1.0)  # llama.cpp's weights count from 0
    return model.eval()


def load_gguf_meta(file: Path) -> Model:
    """The model without its weights."""
    source = open_gguf(file)
    kind = _kind(source.fields, file)
    return registry.build_meta(registry.family(kind.family), _read(source, kind, file)[0])


def _read(source: GGUF, kind: GGUFArchitecture, file: Path) -> tuple[LlamaConfig, dict[str, StoredTensor]]:
    stored = {name: _stored(source, tensor, file) for name, tensor in source.tensors.items()}
    factors = _factors(source, stored.pop(FACTORS), file) if FACTORS in stored else ()
    settings = read_settings(source.fields, kind, stored, factors, file)
    check_layers(settings, stored, file)
    return settings, stored


def _factors(source: GGUF, stored: StoredTensor, file: Path) -> tuple[float, ...]:
    """What each pair of rotated features is slowed down by (Llama 3.1)."""
    tensor = source.tensors[FACTORS]
    if _type_name(tensor, file) != "F32" or len(stored.shape) != 1 or stored.shape[0] > MAX_PAIRS:
        raise WeightsError(f"{file}: {FACTORS} has shape {list(stored.shape)}; expected a vector in F32.")
    return tuple(np.frombuffer(source.data, "<f4", stored.shape[0], tensor.start).tolist())


def _kind(fields: Mapping[str, Any], file: Path) -> GGUFArchitecture:
    name = str(fields.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise FolderError(
            f'{file} holds a "{name}" model, an architecture that anyformer does not read from GGUF files.'
            f"{nearest(name, ARCHITECTURES)} It reads: {', '.join(ARCHITECTURES)}."
        )
    return ARCHITECTURES[name]


def read_settings(
    fields: Mapping[str, Any],
    kind: GGUFArchitecture,
    tensors: Mapping[str, StoredTensor],
    factors: tuple[float, ...],
    file: Path,
) -> LlamaConfig:
    """The file's metadata as our settings. A field that anyformer does not know is an error that names it."""
    prefix = f"{fields['general.architecture']}."
    own = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    strange = sorted(set(own) - set(_FIELDS))
    if strange:
        raise ConfigError(f'{file}: "{prefix}{strange[0]}" is {own[strange[0]]!r}, which anyformer does not support.')
    check_fields(own, _SCHEMA, str(file))
    check_fields(fields, _IDS, str(file))
    ours = {ours: own[name] for name, ours in _FIELDS.items() if ours is not None and name in own}
    words = tensors.get("token_embd.weight")
    if words is None:
        raise WeightsError(f'{file} has no tensor "token_embd.weight", the table of its words.')
    rope = _rope(own, factors)
    family: Any = registry.family(kind.family).config
    foreign = sorted(set(ours) - set(family.field_names()))
    if foreign:
        raise ConfigError(f"{file}: a {kind.family} model has no {foreign[0]}.")
    try:
        settings: Any = family(
            **{**ours, **kind.settings},
            vocab_size=words.shape[0],
            tied="output.weight" not in tensors,
            ropes=(rope, RopeConfig(theta=LOCAL_BASE)) if kind.family == "gemma3" else (rope,),
            padding=fields.get("tokenizer.ggml.padding_token_id"),
            end=fields.get("tokenizer.ggml.eos_token_id"),
        )
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if "scale" in family.field_names() and "norm_order" in kind.settings:
        width = settings.d_model / settings.n_heads if settings.n_layers == kind.by_width else settings.head_width
        settings = settings.replace(scale=float(width))
    if own.get("rope.dimension_count", settings.head_width) != settings.head_width:
        raise ConfigError(f'{file}: "{prefix}rope.dimension_count" is not the width of a head, {settings.head_width}.')
    found: LlamaConfig = settings
    return found


def _rope(own: Mapping[str, Any], factors: tuple[float, ...]) -> RopeConfig:
    kind = own.get("rope.scaling.type", "none")
    if factors and kind != "none":
        raise ConfigError(f'"rope.scaling.type" is "{kind}" beside {FACTORS}; anyformer supports one of both.')
    if kind not in ("none", "linear", "yarn"):
        raise ConfigError(f'"rope.scaling.type" is "{kind}"; it can be none, linear or yarn.')
    base = float(own.get("rope.freq_base", 10_000.0))
    if factors:
        return RopeConfig(
            theta=base, rope_type="longrope", short_factors=factors, long_factors=factors, attention_factor=1.0
        )
    if kind == "none":
        return RopeConfig(theta=base)
    trained = own.get("rope.scaling.original_context_length") if kind == "yarn" else None
    return RopeConfig(
        theta=base, rope_type=kind, factor=float(own.get("rope.scaling.factor", 1.0)), original_max_length=trained
    )


def _keys(config: LlamaConfig, kind: GGUFArchitecture) -> list[Key]:
    """Hugging Face's rows under llama.cpp's names.

    llama.cpp turns neighboring features, we (and Hugging Face) feature i with feature i + d_head / 2, so files of the
    llama architecture have the rows of each head's query and key in another order.
    """
    half = config.head_width // 2
    rows = []
    table = next(table for table in TABLES.values() if table.family == kind.family)
    for key in table.keys(config):
        name = _rename(key.theirs, config.norm_order == "sandwich")
        row = replace(key, theirs=name, also=())
        if kind.interleaved and re.search(r"\.attn_[qk]\.", name):
            heads = config.n_heads if ".attn_q." in name else config.n_kv_heads or config.n_heads
            row = replace(row, op="rows", shape=(heads, half, 2), axes=(0, 2, 1))
        rows.append(row)
    return rows


def _rename(name: str, sandwich: bool) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, _, end = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if layer is None:
        return f"{_TOP[stem]}.{end}"
    if sandwich and layer[2] == "post_attention_layernorm":
        return f"blk.{layer[1]}.post_attention_norm.{end}"
    return f"blk.{layer[1]}.{_LAYER[layer[2]]}.{end}"


def _stored(source: GGUF, tensor: GGUFTensor, file: Path) -> StoredTensor:
    kind = _type_name(tensor, file)
    if kind not in PLAIN and kind not in QUANTIZED:
        known = ", ".join((*PLAIN, *QUANTIZED))
        raise WeightsError(f"{file} holds {tensor.name} as {kind}, which anyformer does not read; it reads {known}.")
    rows, width = _rows(tensor, file)
    if tensor.start + rows * width > len(source.data):
        raise FolderError(f"{file} is cut short: it ends before the end of {tensor.name}.")
    return StoredTensor(file, tensor.name, tensor.shape, PLAIN.get(kind, torch.float32))


def _type_name(tensor: GGUFTensor, file: Path) -> str:
    try:
        from gguf import GGMLQuantizationType
    except ImportError:
        raise FolderError(f"To read {file}, install gguf: pip install gguf.") from None
    try:
        return str(GGMLQuantizationType(tensor.kind).name)
    except ValueError:
        return f"type {tensor.kind}"


def _check(keys: list[Key], stored: Mapping[str, StoredTensor], shapes: Mapping[str, Tensor], file: Path) -> None:
    wanted = {key.theirs: key.expected(shapes[key.ours]) for key in keys}
    wrong = [
        f"{name} is {list(stored[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    missing, extra = sorted(set(wanted) - set(stored)), sorted(set(stored) - set(wanted))
    check_fit(file, missing, extra, wrong, "metadata")


def _rows(tensor: GGUFTensor, file: Path) -> tuple[int, int]:
    """How many rows a tensor has, and how many bytes each takes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    if tensor.shape[-1] % block:
        raise WeightsError(f"{file} packs {block} numbers at a time, and {tensor.name} has {tensor.shape[-1]} a row.")
    return math.prod(tensor.shape[:-1]), tensor.shape[-1] // block * size


def _unpack(source: GGUF, tensor: GGUFTensor, key: Key, place: Tensor, file: Path) -> None:
    """A few rows at a time; where their order is another one, whole heads."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.kind)
    rows, width = _rows(tensor, file)
    data = np.frombuffer(source.data, np.uint8, rows * width, tensor.start).reshape(rows, width)
    step = max(1, ROWS // tensor.shape[-1])
    if key.op == "rows":
        d_head = rows // key.shape[0]
        step = max(1, step // d_head) * d_head
        key = replace(key, shape=(-1, *key.shape[1:]))
    place = place.view(rows, -1)
    for first in range(0, rows, step):
        part = torch.from_numpy(np.require(dequantize(data[first : first + step], kind), requirements="W"))
        target = place[first : first + step]
        target.copy_(key.read(part, target))
