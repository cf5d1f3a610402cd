"""Options of `generate`: their types and allowed values, and how a call's, a config's and the model's are merged."""

from __future__ import annotations

import functools
import inspect
import operator
import typing
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypedDict, TypeVar

import numpy as np
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.schema import Range, fits, shown, spell

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.core.cache import Cache
    from anyformer.model import Model

_LENGTH = 2**31 - 1
_Count = Annotated[int, Range(1, 1024)] | None
_CountOrNone = Annotated[int, Range(0, _LENGTH)] | None  # 0: off
_Penalty = Annotated[float, Range(-1e6, 1e6)] | None  # beyond, scores become infinite or all equal
_Factor = Annotated[float, Range(1e-6, 1e6)] | None
_Mass = Annotated[float, Range(above=0, most=1)] | None
_Cutoff = Annotated[float, Range(least=0, below=1)] | None
_Warmth = Annotated[float, Range(0, 1e6)]
TokenIds = int | Sequence[int] | Tensor | None
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]  # (ids so far [R, L], scores [R, V]) -> scores
# (ids so far [R, L], the scores of all steps with output_scores) -> whether each row is finished, or all are
StoppingCriterion = Callable[[Tensor, tuple[Tensor, ...] | None], Tensor | bool]


class GenerationConfig(Protocol):
    """An object that holds options, such as transformers' GenerationConfig."""

    def to_dict(self) -> dict[str, object]: ...


class Streamer(Protocol):
    """Receives the prompt and then the new tokens [rows] of each step, as transformers' streamers."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class NumberOptions(TypedDict, total=False):
    """Options that their type and range describe completely."""

    max_new_tokens: Annotated[int, Range(1, _LENGTH)] | None
    max_length: _CountOrNone
    min_new_tokens: _CountOrNone
    min_length: _CountOrNone
    max_time: Annotated[float, Range(above=0)] | None
    num_beams: _Count
    num_beam_groups: _Count
    diversity_penalty: _Penalty
    length_penalty: Annotated[float, Range(-10, 10)] | None
    early_stopping: bool | Literal["never"] | None
    num_return_sequences: Annotated[int, Range(1, 2**16)] | None
    do_sample: bool | None
    temperature: _Factor
    top_k: _CountOrNone
    top_p: _Mass
    min_p: Annotated[float, Range(0, 1)] | None
    typical_p: _Mass
    top_h: _Mass
    epsilon_cutoff: _Cutoff
    eta_cutoff: _Cutoff
    repetition_penalty: _Factor
    encoder_repetition_penalty: _Factor
    presence_penalty: _Penalty
    frequency_penalty: _Penalty
    no_repeat_ngram_size: _CountOrNone
    encoder_no_repeat_ngram_size: _CountOrNone
    guidance_scale: _Penalty
    renormalize_logits: bool | None
    remove_invalid_values: bool | None
    num_assistant_tokens: _Count
    prompt_lookup_num_tokens: _CountOrNone
    max_matching_ngram_size: _Count
    use_cache: bool | None
    cache_implementation: Literal["dynamic", "static", "offloaded", "offloaded_static"] | None
    logits_to_keep: _CountOrNone


class ConfigOptions(NumberOptions, total=False):
    """Options that a generation config may hold."""

    eos_token_id: TokenIds
    pad_token_id: TokenIds
    bos_token_id: TokenIds
    decoder_start_token_id: TokenIds
    forced_bos_token_id: TokenIds
    forced_eos_token_id: TokenIds
    suppress_tokens: TokenIds
    begin_suppress_tokens: TokenIds
    bad_words_ids: Sequence[Sequence[int]] | None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[Sequence[Sequence[int] | float]] | None
    exponential_decay_length_penalty: Sequence[float] | None
    stop_strings: str | Sequence[str] | None


class SpeechNumbers(TypedDict, total=False):
    """Options of speech models. A temperature of 0 is greedy; a list is tried in order."""

    return_timestamps: bool | None
    condition_on_prev_tokens: bool | None
    is_multilingual: bool | None
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    no_timestamps_token_id: int | None
    max_initial_timestamp_index: int | None
    prev_sot_token_id: int | None
    lang_to_id: dict[str, int] | None
    task_to_id: dict[str, int] | None
    prompt_condition_type: str | None


class SpeechKeywords(SpeechNumbers, total=False):
    task: str | None
    language: str | Sequence[str] | None
    prompt_ids: Tensor | Sequence[int] | None
    forced_decoder_ids: Sequence[Sequence[int | None]] | None
    return_segments: bool | None


class GenerateKeywords(ConfigOptions, SpeechKeywords, total=False):
    """Every keyword of `generate`: options, what is returned, and the inputs of models."""

    seed: int | Sequence[int] | None
    tokenizer: object
    return_dict_in_generate: bool | None
    output_scores: bool | None
    output_logits: bool | None
    output_attentions: bool | None
    output_hidden_states: bool | None
    logprobs: bool | None
    alignment: bool | int | Sequence[tuple[int, int | None]] | None
    past_key_values: Cache | None
    input_ids: Tensor | None
    attention_mask: Tensor | None
    inputs_embeds: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    pixel_values: Tensor | None
    input_features: Tensor | None
    encoder_outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None
    decoder_input_ids: Tensor | None
    decoder_attention_mask: Tensor | None
    both_ways: Tensor | None


Generate = TypeVar("Generate", bound=Callable[..., object])


def listing_keywords(function: Generate) -> Generate:
    """Replace `**options` in a function's signature by every keyword of `generate`, as `help` shows it."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_spelled(hint))
        for name, hint in GenerateKeywords.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
    return function


def _spelled(hint: Any) -> str:
    return str(getattr(hint, "__forward_arg__", hint))


def _schema(options: type) -> dict[str, Any]:
    """The type of each option, with its range, for a value that is not None."""
    hints = typing.get_type_hints(options, include_extras=True)
    several = {name: [one for one in typing.get_args(hint) if one is not type(None)] for name, hint in hints.items()}
    return {name: functools.reduce(operator.or_, parts) for name, parts in several.items()}


SCHEMA: Mapping[str, Any] = _schema(NumberOptions)
SPEECH_SCHEMA: Mapping[str, Any] = {
    **_schema(SpeechNumbers),
    "temperature": _Warmth | list[_Warmth] | tuple[_Warmth, ...],
}
SPEECH_OPTIONS = (*SPEECH_SCHEMA, "task", "language", "prompt_ids", "forced_decoder_ids")
IDS = tuple(name for name, hint in ConfigOptions.__annotations__.items() if _spelled(hint) == "TokenIds")
FROM_CONFIG = tuple(typing.get_type_hints(ConfigOptions))
OPTIONS = (
    *FROM_CONFIG,
    *("seed", "tokenizer", "prefix_allowed_tokens_fn", "logits_processor", "stopping_criteria", "stamps"),
    *("assistant_model", "negative_prompt_ids", "negative_prompt_attention_mask"),
)
HINTS = {"temperature": " do_sample=False takes the most probable token."}

# Options that do not change the tokens; here the cache, its growth and CUDA graphs are chosen by themselves.
WITHOUT_EFFECT = (
    *("use_cache", "cache_implementation", "logits_to_keep", "cache_config", "max_cache_len", "disable_compile"),
    *("compile_config", "prefill_chunk_size", "low_memory"),
)
# Further fields of a generation config that do not change the tokens.
IGNORED_FIELDS = (
    *("transformers_version", "alignment_heads", "is_assistant", "trust_remote_code", "chat_format"),
    *("max_window_size", "speculation_type"),
)
IGNORED_PREFIXES = ("_", "output_", "return_", "assistant_", "num_assistant_")
# Options that are not supported (docs/decisions/0057): the values that mean "unused", and the nearest counterpart.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "penalty_alpha": ((None, 0.0), "do_sample=True with top_k or top_h"),
    "dola_layers": ((None,), "logits_processor with scores of output_hidden_states"),
    "constraints": ((None,), "prefix_allowed_tokens_fn"),
    "force_words_ids": ((None,), "prefix_allowed_tokens_fn or sequence_bias"),
    "forced_decoder_ids": ((None, []), "decoder_input_ids"),
    "watermarking_config": ((None,), "logits_processor=[watermarking_config.construct_processor(vocab_size, device)]"),
    "token_healing": ((None, False), "prefix_allowed_tokens_fn"),
    "custom_generate": ((None,), "logits_processor and stopping_criteria"),
    "synced_gpus": ((None, False), "one process per generate call"),
    "assistant_tokenizer": ((None,), "an assistant_model with the same vocabulary"),
    "decoder_inputs_embeds": ((None,), "decoder_input_ids"),
}
# Pairs of options for one thing. The caller may give only one of them; the first wins over the second, as in
# transformers, even if the first comes from a file and the second from the caller.
EXCLUSIVE_OPTIONS = (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length"))
# Options of sampling, with their unused values. Without do_sample, other values are ignored in a file and an error from
# the caller.
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0, None),
    "top_k": (0, 50, None),  # 50 is the usual default in generation configs
    "top_p": (1.0, None),
    "min_p": (0.0, None),
    "typical_p": (1.0, None),
    "top_h": (None,),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "seed": (None,),
}


def config_values(config: GenerationConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of the option `generation_config` that are set."""
    values: Any = {} if config is None else getattr(config, "to_dict", lambda: config)()
    if not isinstance(values, Mapping):
        raise InputError(f"generation_config is {shown(config)}; it must be a mapping or have the method to_dict.")
    return {name: value for name, value in values.items() if value is not None}


def check_known(model: Model, options: Mapping[str, Any], inputs: Collection[str]) -> None:
    """Raise an error for options that are unknown or not supported."""
    known = (*OPTIONS, *WITHOUT_EFFECT, *inputs)
    for name, value in options.items():
        if name in REFUSED:
            unused, instead = REFUSED[name]
            if not any(value is one or value == one for one in unused):
                raise InputError(f"generate does not take {name}={shown(value)}; use {instead} instead.")
        elif name not in known:
            raise InputError(
                f'generate of this {model.family} model takes no "{name}".{nearest(name, known)}'
                " help(model.generate) lists all options."
            )


def check_values(options: Mapping[str, Any], where: str = "", schema: Mapping[str, Any] = SCHEMA) -> None:
    """Raise an error for the first option with an invalid value; None means unset."""
    for name, value in options.items():
        hint = schema.get(name)
        if value is not None and hint is not None and not fits(value, hint):
            raise InputError(f"{where}{name} is {shown(value)}; it must be {spell(hint)}.{HINTS.get(name, '')}")


def check_exclusive(options: Mapping[str, Any]) -> None:
    for one, other in EXCLUSIVE_OPTIONS:
        if options.get(one) is not None and options.get(other) is not None:
            raise InputError(f"{one} and {other} exclude one another; give one of them.")


def check_ids(options: Mapping[str, Any], size: int) -> None:
    """Raise an error for the caller's token ids outside of a vocabulary of this size."""
    words = [token for word in as_id_lists(options.get("bad_words_ids")) for token in word]
    biased = [token for word, _ in as_biases(options.get("sequence_bias")) for token in word]
    given = {name: as_ids(options.get(name), name) for name in IDS}
    for name, ids in {**given, "bad_words_ids": words, "sequence_bias": biased}.items():
        wrong = [token for token in ids if not 0 <= token < size]
        if wrong:
            never = "; pass eos_token_id=None for no end token" if name == "eos_token_id" else ""
            raise InputError(f"{name} holds {wrong[0]}, but the vocabulary has {size} tokens{never}.")


def check_left(given: Mapping[str, Any], size: int) -> None:
    """Raise an error if the options that forbid tokens leave none for the first step."""
    alone = [word[0] for word in as_id_lists(given.get("bad_words_ids")) if len(word) == 1]
    names = ("suppress_tokens", "begin_suppress_tokens")
    forbidden = {"bad_words_ids": alone, **{name: as_ids(given.get(name)) for name in names}}
    if len(set().union(*forbidden.values())) >= size:
        some = " and ".join(name for name in (*names, "bad_words_ids") if forbidden[name])
        raise InputError(f"{some} forbid all {size:,} tokens of the vocabulary, so nothing can be generated.")


def check_file(file: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise an error for unsupported options in a generation config; warn about unknown ones."""
    unknown = []
    for name, value in file.items():
        if name in (*known, *IGNORED_FIELDS, *WITHOUT_EFFECT) or name.startswith(IGNORED_PREFIXES):
            continue
        if name not in REFUSED:
            unknown += [name] if value not in (None, False) else []
        elif value not in REFUSED[name][0]:
            raise InputError(
                f"The generation config asks for {name}={shown(value)}, which is not supported; pass "
                f"{name}={REFUSED[name][0][0]} to decode without it, or use {REFUSED[name][1]}."
            )
    if unknown:
        warnings.warn(
            f"The generation config has fields unknown to anyformer, which are ignored: {', '.join(unknown)}.",
            stacklevel=2,
        )


def warn_outranked(file: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Warn if max_new_tokens of a file overrides the caller's max_length, as in transformers."""
    for new, total in EXCLUSIVE_OPTIONS:
        if options.get(total) is not None and new in file and new not in options:
            warnings.warn(
                f"{total}={options[total]} has no effect: the generation config has {new}={file[new]}, which"
                f" wins (as in transformers). Pass {new}, or {new}=None to use {total}.",
                stacklevel=2,
            )


def as_ids(value: Any, name: str = "An option") -> tuple[int, ...]:
    """Return an id, a list of ids or None as a tuple of ids."""
    value = as_python(value)
    ids = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    ids = tuple(as_python(token) for token in ids)
    wrong = [token for token in ids if not isinstance(token, int)]
    if wrong:
        raise InputError(f"{name} holds {shown(wrong[0])}; it must be an id, or a list of ids.")
    return ids


def as_id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return bad_words_ids as tuples of ids; no word may be empty."""
    value = () if value is None else as_python(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, (list, tuple)) and word for word in value):
        raise InputError(
            f"bad_words_ids is {value!r:.80}; it must be a list of words, each a list of ids: [[7], [8, 9]]."
        )
    return tuple(as_ids(word, "bad_words_ids") for word in value)


def as_biases(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return sequence_bias, a mapping or a list of pairs, as pairs of ids and the bias of the last of them."""
    pairs = list(value.items()) if isinstance(value, Mapping) else as_python(value)
    pairs = [] if pairs is None else pairs
    if not isinstance(pairs, (list, tuple)) or not all(map(_is_bias, pairs)) or (value is not None and not pairs):
        raise InputError(f"sequence_bias is {shown(value)}; it must be like {{(7,): 2.5, (8, 9): -5.0}}.")
    return tuple({as_ids(ids, "sequence_bias"): float(bias) for ids, bias in pairs}.items())


def _is_bias(pair: Any) -> bool:
    ids, bias = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else ((), None)
    return isinstance(ids, (list, tuple)) and len(ids) > 0 and fits(bias, float)


def as_decay(value: Any) -> tuple[int, float] | None:
    """Return exponential_decay_length_penalty: the number of tokens without it, and the factor of each further one."""
    value = as_python(value)
    if value is None:
        return None
    pair: Any = value if isinstance(value, (list, tuple)) and len(value) == 2 else (None, None)
    if not fits(pair[0], Annotated[int, Range(0, _LENGTH)]) or not fits(pair[1], Annotated[float, Range(0, 1e6)]):
        raise InputError(
            f"exponential_decay_length_penalty is {shown(value)}; it must be (start, factor), such as (15, 1.6)."
        )
    return int(pair[0]), float(pair[1])


def as_callables(value: Any, name: str) -> tuple[Any, ...]:
    """Return logits_processor or stopping_criteria, a function or a list of them, as a tuple."""
    several = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    wrong = [one for one in several if not callable(one)]
    if wrong:
        raise InputError(f"{name} holds {shown(wrong[0])}; it must be a list of functions of (input_ids, scores).")
    return tuple(several)


def as_python(value: Any) -> Any:
    """Convert NumPy and PyTorch values to Python numbers and lists."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value


def as_seeds(seed: Any, rows: int) -> tuple[int, ...] | None:
    """Return one seed per row, so that a row's tokens depend on its own seed only. A single seed is counted up."""
    if seed is None:
        return None
    if not isinstance(seed, (list, tuple)):
        return tuple(check_seed(check_seed(seed) + row) for row in range(rows))
    if len(seed) != rows:
        raise InputError(f"seed has {len(seed)} entries for {rows} rows; give one per row, or a single number.")
    return tuple(check_seed(one) for one in seed)


def check_seed(seed: Any) -> int:
    """Return the seed if PyTorch accepts it, else raise an error."""
    seed = as_python(seed)
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise InputError(f"seed is {seed!r}; it must be an integer of at most 64 bits.")
    return seed
