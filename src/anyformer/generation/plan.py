"""The plan of a decoding: every option resolved from the call, the generation config and the model's own config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.options import (
    FROM_CONFIG,
    IDS,
    SAMPLING,
    SPEECH_OPTIONS,
    LogitsProcessor,
    StoppingCriterion,
    as_biases,
    as_callables,
    as_decay,
    as_id_lists,
    as_ids,
    as_python,
    as_seeds,
    check_exclusive,
    check_file,
    check_ids,
    check_known,
    check_left,
    check_values,
    config_values,
    warn_outranked,
)
from anyformer.generation.stop_strings import StopStrings, make_stops
from anyformer.generation.timestamps import TimestampRules

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

NEW_TOKENS = 20  # default number of new tokens
TOP_K = 50  # default of transformers; used if neither the caller nor the generation config sets top_k

# Token ids that the model's own config also gives: our name by theirs.
ID_SETTINGS = {"eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start"}


@dataclass(frozen=True, kw_only=True)
class GenerationPlan:
    """All options, resolved. Lengths count the prompt and the new tokens."""

    prompt_length: int = 0  # length of the prompt
    max_length: int = 0
    min_length: int = 0
    max_time: float | None = None  # seconds
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
    top_h: float | None = None
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    guidance_scale: float = 1.0
    renormalize_logits: bool = False
    remove_invalid_values: bool = False
    length_decay: tuple[int, float] | None = None  # new tokens without it, and the factor of the end's score
    biases: tuple[tuple[tuple[int, ...], float], ...] = ()  # of the last id, after the others
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
    processors: tuple[LogitsProcessor, ...] = field(default=(), compare=False)  # the caller's
    criteria: tuple[StoppingCriterion, ...] = field(default=(), compare=False)  # the caller's
    guidance: Any = field(default=None, compare=False)  # the processor for guidance_scale
    history: Tensor | None = field(default=None, compare=False, repr=False)  # prompt ids for processors, if padded
    source: Tensor | None = field(default=None, compare=False, repr=False)  # ids that the encoder options count

    def replace(self, **fields: Any) -> Self:
        return dataclasses.replace(self, **fields)

    def uses(self, option: str) -> bool:
        """Whether an option of the plan differs from its default."""
        return bool(getattr(self, option) != getattr(GenerationPlan, option))

    def check(self) -> None:
        """Raise an error for options that contradict each other."""
        self._check_groups()
        many = self.num_return_sequences
        if not self.do_sample and many > self.num_beams:
            raise InputError(f"num_return_sequences is {many}; it must be at most num_beams, {self.num_beams}.")
        if self.guidance_scale != 1 and self.num_beams > 1:
            raise InputError(f"guidance_scale needs num_beams=1, not {self.num_beams}; leave one of them out.")

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
PLAN_OPTIONS = tuple(
    one.name
    for one in dataclasses.fields(GenerationPlan)
    if one.name in FROM_CONFIG and one.name not in ("max_length", "min_length", "stop_strings")
)


def resolve(model: Model, options: Mapping[str, Any], inputs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Merge the options: the caller's win over the generation config, which wins over the model's own config.

    `inputs` are further keywords, which are not options.
    """
    size, config = vocab_size(model), options.get("generation_config")
    options = {
        name: as_python(value) if name in (*FROM_CONFIG, "seed") else value
        for name, value in options.items()
        if name != "generation_config"
    }
    check_known(model, options, inputs)
    check_values(options)
    check_exclusive(options)
    check_ids(options, size)
    file = {**model_generation_config(model), **config_values(config)}
    speech = SPEECH_OPTIONS if first_window(model) is not None else ()
    check_file({name: value for name, value in file.items() if name not in (*options, *speech)}, FROM_CONFIG)
    from_file = {name: value for name, value in file.items() if value is not None}
    given = {"top_k": TOP_K, **model_token_ids(model), **from_file, **options}
    warn_outranked(from_file, options)
    for name in IDS:
        if name not in options and name in given:
            given[name] = [token for token in as_ids(given[name], name) if 0 <= token < size] or None
    if not given.get("do_sample"):
        given = {name: value for name, value in given.items() if name not in SAMPLING or name in options}
    check_values({name: value for name, value in given.items() if name not in options}, "Generation config: ")
    check_left(given, size)
    return given


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
    return model.origin.generation or {name: theirs[name] for name in FROM_CONFIG if name in theirs}


def vocab_size(model: Model) -> int:
    head: Any = model.heads["language"]
    size: int = head.config.vocab_size
    return size


def first_window(model: Model) -> int | None:
    """The number of audio frames that a speech model reads at once; None for other models."""
    stage: Any = next(iter(model.stages.values()))
    window: int | None = stage.inputs.window
    return window if "language" in model.heads else None


def make_plan(model: Model, given: Mapping[str, Any]) -> GenerationPlan:
    """Return the plan for options of `resolve`, still without lengths and seeds."""
    end = tuple(dict.fromkeys(as_ids(given.get("eos_token_id"))))
    least = given.get("min_new_tokens") or given.get("min_length")
    if (least or (given.get("num_beams") or 1) > 1) and len(end) >= vocab_size(model):  # no token could follow
        raise InputError("eos_token_id holds the whole vocabulary; keep only the tokens that end a text.")
    idle = [name for name in SAMPLING if not given.get("do_sample") and given.get(name) not in SAMPLING[name]]
    if idle:
        raise InputError(
            f"{idle[0]}={given[idle[0]]!r} is used only in sampling; pass do_sample=True too, or leave it out."
        )
    plan = GenerationPlan(
        eos_ids=end,
        pad_id=(*as_ids(given.get("pad_token_id")), *end, 0)[0],
        length_decay=as_decay(given.get("exponential_decay_length_penalty")),
        biases=as_biases(given.get("sequence_bias")),
        bad_words=as_id_lists(given.get("bad_words_ids")),
        suppress=as_ids(given.get("suppress_tokens")),
        begin_suppress=as_ids(given.get("begin_suppress_tokens")),
        forced_begin=_first(given.get("forced_bos_token_id")),
        forced_end=_first(given.get("forced_eos_token_id")),
        stop_strings=make_stops(given.get("stop_strings"), given.get("tokenizer")),
        allowed_tokens_fn=given.get("prefix_allowed_tokens_fn"),
        timestamps=given.get("stamps"),
        processors=as_callables(given.get("logits_processor"), "logits_processor"),
        criteria=as_callables(given.get("stopping_criteria"), "stopping_criteria"),
        **{name: given[name] for name in PLAN_OPTIONS if given.get(name) is not None},
    )
    plan.check()
    return plan


def with_lengths(
    plan: GenerationPlan, model: Model, given: Mapping[str, Any], prompt: int, rows: int, embedded: int = 0
) -> GenerationPlan:
    """Return the plan with its lengths and seeds. `embedded`: tokens of the prompt that were given as vectors."""
    max_length = given.get("max_length")
    lengths = [vars(one)["max_length"] for one in plan.criteria if type(one).__name__ == "MaxLengthCriteria"]
    if lengths:  # of transformers, where it replaces the other lengths, too
        max_length = lengths[0]
    elif given.get("max_new_tokens") is not None:
        max_length = prompt + given["max_new_tokens"]
    elif max_length is None:
        table = getattr(model.config, "length_limit", model.config.to_json().get("max_length"))  # number of positions
        max_length = prompt + NEW_TOKENS if table is None else min(prompt + NEW_TOKENS, table)
    else:
        max_length -= embedded
    min_new = given.get("min_new_tokens")
    min_length = prompt + min_new if min_new is not None else max((given.get("min_length") or 0) - embedded, 0)
    if max_length <= prompt:
        raise InputError(
            f"The prompt has {prompt + embedded} tokens and max_length is {max_length + embedded}, so no token is left"
            " to generate; raise max_length."
        )
    if min_length > max_length:
        raise InputError(f"The minimum length {min_length} is above max_length {max_length}.")
    seeds = as_seeds(given.get("seed"), rows)
    return plan.replace(prompt_length=prompt, max_length=max_length, min_length=min_length, seeds=seeds)


def fit_to_context(plan: GenerationPlan, length: int, limit: int | None, asked: bool) -> GenerationPlan:
    """Fit the plan to the model's number of positions. The last token is not read again and needs no position.

    A length that the caller gave (`asked`) and that does not fit is an error; a default length is reduced.
    """
    if limit is None:
        return plan
    new, room = plan.max_length - plan.prompt_length, limit + 1 - length
    if new <= room:
        return plan
    if asked:
        raise InputError(
            f"The prompt has {length} tokens plus up to {new} new ones, but the model has only {limit} positions;"
            f" pass max_new_tokens={room} or less."
        )
    return plan.replace(max_length=plan.prompt_length + room)


def _first(value: Any) -> int | None:
    ids = as_ids(value)
    return ids[0] if ids else None
