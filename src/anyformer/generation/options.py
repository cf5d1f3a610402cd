"""Decoding options: those of the caller, the folder's generation config and the model, resolved into one plan."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from anyformer.config import Settings
from anyformer.errors import InputError, nearest
from anyformer.generation.limits import check_left, check_values
from anyformer.generation.prompt import input_names, is_speech_model
from anyformer.generation.stop_strings import StopStrings, make_stops
from anyformer.generation.timestamps import TimestampRules
from anyformer.schema import shown

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

NEW_TOKENS = 20  # default number of new tokens
TOP_K = 50  # default of transformers; used if neither the caller nor the generation config sets top_k

# Token ids that the model's own config also gives: our name by theirs.
ID_SETTINGS = {"eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start"}

# Fields of a generation config that do not change the tokens.
IGNORED_OPTIONS = (
    *("use_cache", "max_time", "transformers_version", "cache_implementation", "cache_config", "alignment_heads"),
    *("disable_compile", "compile_config", "prefill_chunk_size", "low_memory", "is_assistant", "trust_remote_code"),
    *("chat_format", "max_window_size"),
)
IGNORED_PREFIXES = ("_", "output_", "return_", "assistant_", "num_assistant_")
# Options that are not supported, with the values that mean "unused".
UNSUPPORTED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "penalty_alpha": (None, 0.0),
    "guidance_scale": (None, 1.0),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "encoder_repetition_penalty": (1.0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "forced_decoder_ids": (None, []),
    "watermarking_config": (None,),
    "token_healing": (False, None),
    "dola_layers": (None,),
    "top_h": (None,),
}


@dataclass(frozen=True, kw_only=True)
class GenerationPlan(Settings):
    """All options, resolved. Lengths count the prompt and the new tokens."""

    prompt_length: int  # length of the prompt
    max_length: int
    min_length: int = 0
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    num_beams: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    num_return_sequences: int = 1
    do_sample: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False
    remove_invalid_values: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    forced_begin: int | None = None
    forced_end: int | None = None
    seeds: tuple[int, ...] | None = None  # one per row
    num_assistant_tokens: int = 5  # draft tokens per step
    prompt_lookup_num_tokens: int = 0  # draft tokens per step with prompt lookup; 0 disables it
    max_matching_ngram_size: int = 2  # number of last tokens that are looked up
    stop_strings: StopStrings | None = None  # strings that end a row
    timestamps: TimestampRules | None = None  # rules for timestamp tokens
    allowed_tokens_fn: Any = None  # (index of the prompt, ids so far) -> allowed ids
    history: Any = field(default=None, compare=False, repr=False)  # prompt ids for processors, if padded

    def check(self) -> None:
        self._check_groups()
        many = self.num_return_sequences
        if not self.do_sample and many > self.num_beams:
            raise InputError(f"num_return_sequences is {many}; it must be at most num_beams, {self.num_beams}.")
        if self.max_length <= self.prompt_length:
            raise InputError(
                f"The prompt has {self.prompt_length} tokens and max_length is {self.max_length}, so no token is left"
                " to generate; raise max_length."
            )
        if self.min_length > self.max_length:
            raise InputError(f"The minimum length {self.min_length} is above max_length {self.max_length}.")

    def _check_groups(self) -> None:
        groups, beams, penalty = self.num_beam_groups, self.num_beams, self.diversity_penalty
        if groups == 1 and penalty == 0:
            return
        if groups == 1 or penalty <= 0:
            raise InputError(
                f"num_beam_groups is {groups} and diversity_penalty {penalty}; beam groups need num_beam_groups"
                " above 1 and diversity_penalty above 0."
            )
        if beams % groups:
            raise InputError(f"num_beams is {beams}; it must be a multiple of num_beam_groups, {groups}.")
        if self.do_sample:
            raise InputError("num_beam_groups cannot be used with do_sample; leave one of them out.")


# Options copied to the plan unchanged.
PLAN_OPTIONS = (
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "num_return_sequences",
    "do_sample",
    "length_penalty",
    "early_stopping",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "renormalize_logits",
    "remove_invalid_values",
    "num_assistant_tokens",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
)
# Options that hold token ids.
IDS = (
    *(*ID_SETTINGS, "bos_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
# Additional options for speech (speech.py), from the caller or a file; `temperature` may be a list there.
SPEECH_OPTIONS = (
    *("return_timestamps", "task", "language", "is_multilingual", "prompt_ids", "prompt_condition_type"),
    *("condition_on_prev_tokens", "temperature", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "no_timestamps_token_id", "max_initial_timestamp_index", "prev_sot_token_id"),
    *("lang_to_id", "task_to_id", "forced_decoder_ids"),
)
# Options that are converted for the plan.
OPTIONS = (
    *IDS,
    *("max_new_tokens", "max_length", "min_new_tokens", "min_length", "seed", "stop_strings", "tokenizer"),
    *("bad_words_ids", "prefix_allowed_tokens_fn", "stamps"),
)
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
    "seed": (None,),
}


def resolve(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the options: the caller's win over the generation config, which wins over the model's own config."""
    known = (*OPTIONS, *PLAN_OPTIONS, *input_names(model), "use_cache", "assistant_model")
    for name, value in options.items():
        if name in UNSUPPORTED_OPTIONS:
            if value not in UNSUPPORTED_OPTIONS[name]:
                raise InputError(f"generate does not support {name}={value!r}; leave it out.")
        elif name not in known:
            raise InputError(f'generate has no option "{name}".{nearest(name, known)} Options: {", ".join(known)}.')
    options = {
        name: as_python(value) if name in (*OPTIONS, *PLAN_OPTIONS) else value for name, value in options.items()
    }
    check_options(model, options)
    file = model_generation_config(model)
    speech_names = SPEECH_OPTIONS if is_speech_model(model) else ()
    check_file({name: value for name, value in file.items() if name not in (*options, *speech_names)})
    from_file = {name: value for name, value in file.items() if value is not None}
    given = {"top_k": TOP_K, **model_token_ids(model), **from_file, **options}
    warn_outranked(from_file, options)
    for name in IDS:
        if name not in options and name in given:
            given[name] = [token for token in as_ids(given[name], name) if 0 <= token < vocab_size(model)] or None
    if not given.get("do_sample"):
        given = {name: value for name, value in given.items() if name not in SAMPLING or name in options}
    from_file = {name: value for name, value in given.items() if name not in options}
    check_values(from_file, "Generation config: ")
    check_forbidden(given, vocab_size(model))
    return given


def check_forbidden(given: Mapping[str, Any], size: int) -> None:
    """Check that the first step, which has its own forbidden tokens, has a token left."""
    alone = [word[0] for word in as_id_lists(given.get("bad_words_ids")) if len(word) == 1]
    never = {"suppress_tokens": as_ids(given.get("suppress_tokens")), "bad_words_ids": alone}
    check_left({**never, "begin_suppress_tokens": as_ids(given.get("begin_suppress_tokens"))}, size)


def model_token_ids(model: Model) -> dict[str, Any]:
    """Return the token ids from the model's config and its config.json (or the decoder's part of it)."""
    settings, theirs = model.config.to_json(), model.origin.hf_config
    own = {name: settings[ours] for name, ours in ID_SETTINGS.items() if ours in settings}
    own |= {"bos_token_id": settings["begin"]} if "begin" in settings else {}
    for config in (theirs.get("decoder"), theirs):
        if isinstance(config, Mapping):
            own.update({n: config[n] for n in (*ID_SETTINGS, "bos_token_id") if config.get(n) is not None})
    return own


def model_generation_config(model: Model) -> dict[str, Any]:
    """Return the folder's generation config; older folders keep its fields in config.json."""
    theirs = model.origin.hf_config
    return model.origin.generation or {name: theirs[name] for name in (*OPTIONS, *PLAN_OPTIONS) if name in theirs}


def warn_outranked(file: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Warn if max_new_tokens of a file overrides the caller's max_length, as in transformers."""
    for new, total in EXCLUSIVE_OPTIONS:
        if options.get(total) is not None and new in file and new not in options:
            warnings.warn(
                f"{total}={options[total]} has no effect: the generation config has {new}={file[new]}, which"
                f" wins (as in transformers). Pass {new}, or {new}=None to use {total}.",
                stacklevel=2,
            )


def vocab_size(model: Model) -> int:
    head: Any = model.heads["language"]
    size: int = head.config.vocab_size
    return size


def check_options(model: Model, options: Mapping[str, Any]) -> None:
    """Check the caller's options before they are merged with the file's."""
    check_values(options)
    for one, other in EXCLUSIVE_OPTIONS:
        if options.get(one) is not None and options.get(other) is not None:
            raise InputError(f"{one} and {other} exclude one another; give one of them.")
    size = vocab_size(model)
    bad = [token for word in as_id_lists(options.get("bad_words_ids")) for token in word]
    for name, ids in (*((name, as_ids(options.get(name), name)) for name in IDS), ("bad_words_ids", bad)):
        wrong = [token for token in ids if not 0 <= token < size]
        if wrong:
            never = "; pass eos_token_id=None for no end token" if name == "eos_token_id" else ""
            raise InputError(f"{name} holds {wrong[0]}, but the vocabulary has {size} tokens{never}.")


def check_file(file: Mapping[str, Any]) -> None:
    """Raise an error for unsupported options in a file; warn about unknown ones."""
    unknown = []
    for name, value in file.items():
        if name in (*OPTIONS, *PLAN_OPTIONS, *IGNORED_OPTIONS) or name.startswith(IGNORED_PREFIXES):
            continue
        if name not in UNSUPPORTED_OPTIONS:
            unknown += [name] if value not in (None, False) else []
        elif value not in UNSUPPORTED_OPTIONS[name]:
            raise InputError(
                f"The generation config asks for {name}={value!r}, which is not supported; pass "
                f"{name}={UNSUPPORTED_OPTIONS[name][0]} to decode without it."
            )
    if unknown:
        warnings.warn(
            f"The generation config has fields unknown to anyformer, which are ignored: {', '.join(unknown)}.",
            stacklevel=2,
        )


def make_plan(model: Model, given: Mapping[str, Any], prompt: int, rows: int) -> GenerationPlan:
    end = tuple(dict.fromkeys(as_ids(given.get("eos_token_id"))))
    least = given.get("min_new_tokens") or given.get("min_length")
    if (least or (given.get("num_beams") or 1) > 1) and len(end) >= vocab_size(model):  # no token could follow
        raise InputError("eos_token_id holds the whole vocabulary; keep only the tokens that end a text.")
    padding = given.get("pad_token_id")
    plain = {name: given[name] for name in PLAN_OPTIONS if given.get(name) is not None}
    plan = GenerationPlan(
        **resolve_lengths(model, given, prompt),
        eos_ids=end,
        pad_id=(*as_ids(padding), *end, 0)[0],
        bad_words=as_id_lists(given.get("bad_words_ids")),
        suppress=as_ids(given.get("suppress_tokens")),
        begin_suppress=as_ids(given.get("begin_suppress_tokens")),
        forced_begin=_first(given.get("forced_bos_token_id")),
        forced_end=_first(given.get("forced_eos_token_id")),
        seeds=_seeds(given.get("seed"), rows),
        stop_strings=make_stops(given.get("stop_strings"), given.get("tokenizer")),
        allowed_tokens_fn=given.get("prefix_allowed_tokens_fn"),
        timestamps=given.get("stamps"),
        **plain,
    )
    idle = [name for name in SAMPLING if not plan.do_sample and given.get(name) not in SAMPLING[name]]
    if idle:
        raise InputError(
            f"{idle[0]}={given[idle[0]]!r} is used only in sampling; pass do_sample=True too, or leave it out."
        )
    return plan


def resolve_lengths(model: Model, given: Mapping[str, Any], prompt: int) -> dict[str, Any]:
    """Return the lengths of a plan, counted with the prompt."""
    max_length = given.get("max_length")
    if given.get("max_new_tokens") is not None:
        max_length = prompt + given["max_new_tokens"]
    elif max_length is None:
        table = model.config.to_json().get("max_length")  # number of positions
        max_length = prompt + NEW_TOKENS if table is None else min(prompt + NEW_TOKENS, table)
    min_new = given.get("min_new_tokens")
    min_length = prompt + min_new if min_new is not None else given.get("min_length") or 0
    return {"prompt_length": prompt, "max_length": max_length, "min_length": min_length}


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


def as_python(value: Any) -> Any:
    """Convert NumPy and PyTorch values to Python numbers and lists."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value


def _first(value: Any) -> int | None:
    ids = as_ids(value)
    return ids[0] if ids else None


def _seeds(seed: Any, rows: int) -> tuple[int, ...] | None:
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
