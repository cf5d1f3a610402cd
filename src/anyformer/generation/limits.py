"""Allowed values of each option of `generate`, for the caller's options and for the folder's generation config."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from anyformer.errors import InputError
from anyformer.schema import Range, fits, shown, spell

_LENGTH = 2**31 - 1
_COUNT, _COUNT_OR_NONE = Annotated[int, Range(1, 1024)], Annotated[int, Range(0, _LENGTH)]  # 0: off
_PENALTY = Annotated[float, Range(-1e6, 1e6)]
_SHARE = Annotated[float, Range(above=0, most=1)]
# Beyond these bounds, scaled scores become infinite or all equal.
SCHEMA: Mapping[str, Any] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_assistant_tokens", "max_matching_ngram_size"), _COUNT),
    "num_return_sequences": Annotated[int, Range(1, 2**16)],
    **dict.fromkeys(("top_k", "no_repeat_ngram_size", "prompt_lookup_num_tokens"), _COUNT_OR_NONE),
    "max_new_tokens": Annotated[int, Range(1, _LENGTH)],
    **dict.fromkeys(("max_length", "min_length", "min_new_tokens"), Annotated[int, Range(0, _LENGTH)]),
    **dict.fromkeys(("do_sample", "renormalize_logits", "remove_invalid_values", "use_cache"), bool),
    "early_stopping": bool | Literal["never"],
    "temperature": Annotated[float, Range(1e-6, 1e6)],
    **dict.fromkeys(("top_p", "typical_p"), _SHARE),
    "min_p": Annotated[float, Range(0, 1)],
    "length_penalty": Annotated[float, Range(-10, 10)],
    "repetition_penalty": Annotated[float, Range(1e-6, 1e6)],
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "diversity_penalty"), _PENALTY),
}
# Additional options for speech. A temperature of 0 is greedy; a list is tried in order.
_WARMTH = Annotated[float, Range(0, 1e6)]
SPEECH_SCHEMA: Mapping[str, Any] = {
    "temperature": _WARMTH | list[_WARMTH] | tuple[_WARMTH, ...],
    **dict.fromkeys(("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"), float),
    **dict.fromkeys(("return_timestamps", "condition_on_prev_tokens", "is_multilingual"), bool),
    **dict.fromkeys(("no_timestamps_token_id", "max_initial_timestamp_index", "prev_sot_token_id"), int),
    **dict.fromkeys(("lang_to_id", "task_to_id"), dict[str, int]),
    "prompt_condition_type": str,
}
HINTS = {"temperature": " do_sample=False takes the most probable token."}


def check_values(options: Mapping[str, Any], where: str = "", schema: Mapping[str, Any] = SCHEMA) -> None:
    """Raise an error for the first option with an invalid value; None means unset."""
    for name, hint in schema.items():
        value = options.get(name)
        if value is not None and not fits(value, hint):
            raise InputError(f"{where}{name} is {shown(value)}; it must be {spell(hint)}.{HINTS.get(name, '')}")


def check_left(forbidden: Mapping[str, Collection[int]], vocabulary: int) -> None:
    """Raise an error if the options that forbid tokens leave none."""
    if len(set().union(*forbidden.values())) >= vocabulary:
        names = " and ".join(name for name, tokens in forbidden.items() if tokens)
        raise InputError(f"{names} forbid all {vocabulary:,} tokens of the vocabulary, so nothing can be generated.")
