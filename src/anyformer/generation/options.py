"""How to decode: what the caller, the folder and the model say, resolved into one plan."""

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

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model

NEW_TOKENS = 20  # where nobody says how long
TOP_K = 50  # transformers' default: sampling draws from so many tokens unless the caller or a file sets top_k

# Ids that a model's own settings give too, under other names.
ID_SETTINGS = {"eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start"}

# What a generation config may hold that says nothing about which tokens come out.
IGNORED_OPTIONS = (
    *("use_cache", "max_time", "transformers_version", "cache_implementation", "cache_config", "alignment_heads"),
    *("disable_compile", "compile_config", "prefill_chunk_size", "low_memory", "is_assistant", "trust_remote_code"),
    *("chat_format", "max_window_size"),
)
IGNORED_PREFIXES = ("_", "output_", "return_", "assistant_", "num_assistant_")
# Options of searches that are not in this version, with the values that mean "not used".
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
    """Every option, resolved. Lengths count everything that is returned, the prompt too."""

    prompt_length: int  # tokens that were given
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
    seeds: tuple[int, ...] | None = None  # one a row
    num_assistant_tokens: int = 5  # what a draft guesses at a time
    prompt_lookup_num_tokens: int = 0  # the same where the text so far is the draft; 0: it is not
    max_matching_ngram_size: int = 2  # how many last tokens are looked up there
    stop_strings: StopStrings | None = None  # strings that end a row
    timestamps: TimestampRules | None = None  # times that a transcript must keep in order
    allowed_tokens_fn: Any = None  # (number of the prompt, ids so far) -> the ids that may come next
    history: Any = field(default=None, compare=False, repr=False)  # the prompt as rules see it, where rows are uneven

    def check(self) -> None:
        self._check_groups()
        many = self.num_return_sequences
        if not self.do_sample and many > self.num_beams:
            raise InputError(f"num_return_sequences is {many}, but only {self.num_beams} beam(s) are searched.")
        if self.max_length <= self.prompt_length:
            raise InputError(
                f"The prompt has {self.prompt_length} tokens and max_length is {self.max_length}; no token is left to"
                " generate."
            )
        if self.min_length > self.max_length:
            raise InputError(f"The least length {self.min_length} is above the greatest, {self.max_length}.")

    def _check_groups(self) -> None:
        groups, beams, penalty = self.num_beam_groups, self.num_beams, self.diversity_penalty
        if groups == 1 and penalty == 0:
            return
        if groups == 1 or penalty <= 0:
            raise InputError(
                f"num_beam_groups is {groups} and diversity_penalty {penalty}; groups of beams need two or more of "
                "them and a penalty above 0, or they all say the same."
            )
        if beams % groups:
            raise InputError(f"num_beams {beams} is not a multiple of num_beam_groups {groups}.")
        if self.do_sample:
            raise InputError("Groups of beams are searched, not drawn; leave out do_sample or num_beam_groups.")


# Options that go to the plan as they are.
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
# Options that hold ids of the vocabulary.
IDS = (
    *(*ID_SETTINGS, "bos_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
# What listening takes besides (speech.py), from the caller or from a file; `temperature` may be several there.
SPEECH_OPTIONS = (
    *("return_timestamps", "task", "language", "is_multilingual", "prompt_ids", "prompt_condition_type"),
    *("condition_on_prev_tokens", "temperature", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "no_timestamps_token_id", "max_initial_timestamp_index", "prev_sot_token_id"),
    *("lang_to_id", "task_to_id", "forced_decoder_ids"),
)
# Options that need a word of translation, those among them.
OPTIONS = (
    *IDS,
    *("max_new_tokens", "max_length", "min_new_tokens", "min_length", "seed", "stop_strings", "tokenizer"),
    *("bad_words_ids", "prefix_allowed_tokens_fn", "stamps"),
)
# Two ways of saying one thing. The caller gives one of them; the first wins over the second, as in transformers, even
# if the first is a file's and the second the caller's.
EXCLUSIVE_OPTIONS = (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length"))
# What only sampling reads, with the values that ask for nothing. A file that says more is not heard; a caller is asked.
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0, None),
    "top_k": (0, 50, None),  # 50 is what the ecosystem's files say by default
    "top_p": (1.0, None),
    "min_p": (0.0, None),
    "typical_p": (1.0, None),
    "seed": (None,),
}


def resolve(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """Explicit options win over the folder's generation config, which wins over the model's own settings."""
    known = (*OPTIONS, *PLAN_OPTIONS, *input_names(model), "use_cache", "assistant_model")
    for name, value in options.items():
        if name in UNSUPPORTED_OPTIONS:
            if value not in UNSUPPORTED_OPTIONS[name]:
                raise InputError(f"generate with {name}={value!r} is not in this version.")
        elif name not in known:
            raise InputError(f'generate takes no "{name}".{nearest(name, known)} It takes: {", ".join(known)}.')
    options = {
        name: as_python(value) if name in (*OPTIONS, *PLAN_OPTIONS) else value for name, value in options.items()
    }
    check_options(model, options)
    file = model_generation_config(model)
    heard_of = SPEECH_OPTIONS if is_speech_model(model) else ()
    check_file({name: value for name, value in file.items() if name not in (*options, *heard_of)})
    heard = {name: value for name, value in file.items() if value is not None}
    given = {"top_k": TOP_K, **model_token_ids(model), **heard, **options}
    warn_outranked(heard, options)
    for name in IDS:
        if name not in options and name in given:
            given[name] = [token for token in as_ids(given[name], name) if 0 <= token < vocab_size(model)] or None
    if not given.get("do_sample"):
        given = {name: value for name, value in given.items() if name not in SAMPLING or name in options}
    heard = {name: value for name, value in given.items() if name not in options}
    check_values(heard, "The generation config is wrong: ")
    check_forbidden(given, vocab_size(model))
    return given


def check_forbidden(given: Mapping[str, Any], size: int) -> None:
    """Something may be said at the first step, which has rules of its own."""
    alone = [word[0] for word in as_id_lists(given.get("bad_words_ids")) if len(word) == 1]
    never = {"suppress_tokens": as_ids(given.get("suppress_tokens")), "bad_words_ids": alone}
    check_left({**never, "begin_suppress_tokens": as_ids(given.get("begin_suppress_tokens"))}, size)


def model_token_ids(model: Model) -> dict[str, Any]:
    """Ids that the model's settings and its config.json give; a pair's may stand with its decoder."""
    settings, theirs = model.config.to_json(), model.origin.hf_config
    own = {name: settings[ours] for name, ours in ID_SETTINGS.items() if ours in settings}
    own |= {"bos_token_id": settings["begin"]} if "begin" in settings else {}
    for config in (theirs.get("decoder"), theirs):
        if isinstance(config, Mapping):
            own.update({n: config[n] for n in (*ID_SETTINGS, "bos_token_id") if config.get(n) is not None})
    return own


def model_generation_config(model: Model) -> dict[str, Any]:
    """What the model's folder says; old ones have no generation config and say such things in config.json."""
    theirs = model.origin.hf_config
    return model.origin.generation or {name: theirs[name] for name in (*OPTIONS, *PLAN_OPTIONS) if name in theirs}


def warn_outranked(file: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Warn about a length of the caller's that a file's count of new tokens overrides, as in transformers."""
    for new, total in EXCLUSIVE_OPTIONS:
        if options.get(total) is not None and new in file and new not in options:
            warnings.warn(
                f"{total}={options[total]} has no effect, because the generation config says {new}={file[new]}, which"
                f" wins as in transformers; pass {new}, or {new}=None to use {total}.",
                stacklevel=2,
            )


def vocab_size(model: Model) -> int:
    head: Any = model.heads["language"]
    size: int = head.config.vocab_size
    return size


def check_options(model: Model, options: Mapping[str, Any]) -> None:
    """What can be said of the caller's options before they meet the file's."""
    check_values(options)
    for one, other in EXCLUSIVE_OPTIONS:
        if options.get(one) is not None and options.get(other) is not None:
            raise InputError(f"{one} and {other} say the same thing in two ways; give one of them.")
    size = vocab_size(model)
    bad = [token for word in as_id_lists(options.get("bad_words_ids")) for token in word]
    for name, ids in (*((name, as_ids(options.get(name), name)) for name in IDS), ("bad_words_ids", bad)):
        wrong = [token for token in ids if not 0 <= token < size]
        if wrong:
            never = "; pass eos_token_id=None for texts that do not end" if name == "eos_token_id" else ""
            raise InputError(f"{name} holds {wrong[0]}, but the vocabulary has {size} entries{never}.")


def check_file(file: Mapping[str, Any]) -> None:
    """What a file asks for and this version has not is an error; what nobody has heard of is a warning."""
    unknown = []
    for name, value in file.items():
        if name in (*OPTIONS, *PLAN_OPTIONS, *IGNORED_OPTIONS) or name.startswith(IGNORED_PREFIXES):
            continue
        if name not in UNSUPPORTED_OPTIONS:
            unknown += [name] if value not in (None, False) else []
        elif value not in UNSUPPORTED_OPTIONS[name]:
            raise InputError(
                f"The generation config asks for {name}={value!r}, which is not in this version; pass "
                f"{name}={UNSUPPORTED_OPTIONS[name][0]} to decode without it."
            )
    if unknown:
        warnings.warn(
            f"The generation config has fields that anyformer does not know and leaves aside: {', '.join(unknown)}.",
            stacklevel=2,
        )


def make_plan(model: Model, given: Mapping[str, Any], prompt: int, rows: int) -> GenerationPlan:
    end = tuple(dict.fromkeys(as_ids(given.get("eos_token_id"))))
    least = given.get("min_new_tokens") or given.get("min_length")
    if (least or (given.get("num_beams") or 1) > 1) and len(end) >= vocab_size(model):  # nothing could go on
        raise InputError("eos_token_id holds the whole vocabulary; leave out the tokens that do not end a text.")
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
            f"{idle[0]}={given[idle[0]]!r} is for sampling only; pass do_sample=True with it, or leave it out."
        )
    return plan


def resolve_lengths(model: Model, given: Mapping[str, Any], prompt: int) -> dict[str, Any]:
    """What in a plan counts from the prompt's length."""
    max_length = given.get("max_length")
    if given.get("max_new_tokens") is not None:
        max_length = prompt + given["max_new_tokens"]
    elif max_length is None:
        table = model.config.to_json().get("max_length")  # of positions
        max_length = prompt + NEW_TOKENS if table is None else min(prompt + NEW_TOKENS, table)
    min_new = given.get("min_new_tokens")
    min_length = prompt + min_new if min_new is not None else given.get("min_length") or 0
    return {"prompt_length": prompt, "max_length": max_length, "min_length": min_length}


def as_ids(value: Any, name: str = "An option") -> tuple[int, ...]:
    """An id, a list of ids or nothing, as ids."""
    value = as_python(value)
    ids = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    ids = tuple(as_python(token) for token in ids)
    wrong = [token for token in ids if not isinstance(token, int)]
    if wrong:
        raise InputError(f"{name} holds {shown(wrong[0])}; it must be an id, or a list of ids.")
    return ids


def as_id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    """Words as lists of ids, none of them empty."""
    value = () if value is None else as_python(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, (list, tuple)) and word for word in value):
        raise InputError(
            f"bad_words_ids is {value!r:.80}; it must be a list of words, each a list of ids: [[7], [8, 9]]."
        )
    return tuple(as_ids(word, "bad_words_ids") for word in value)


def as_python(value: Any) -> Any:
    """What NumPy and PyTorch hold, as Python's own numbers and lists."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value


def _first(value: Any) -> int | None:
    ids = as_ids(value)
    return ids[0] if ids else None


def _seeds(seed: Any, rows: int) -> tuple[int, ...] | None:
    """One a row: a row's tokens then depend on its own seed alone. A single seed is counted up."""
    if seed is None:
        return None
    if not isinstance(seed, (list, tuple)):
        return tuple(check_seed(check_seed(seed) + row) for row in range(rows))
    if len(seed) != rows:
        raise InputError(f"seed has {len(seed)} entries for {rows} rows; give one a row, or a single number.")
    return tuple(check_seed(one) for one in seed)


def check_seed(seed: Any) -> int:
    """A seed that PyTorch takes."""
    seed = as_python(seed)
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at most 64 bits.")
    return seed
