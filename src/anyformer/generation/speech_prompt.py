"""Speech options and decoder prompts: start token, language, task and whether to predict timestamps (Radford et al.
2022, §2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.errors import InputError, nearest
from anyformer.generation.options import SPEECH_OPTIONS, SPEECH_SCHEMA, as_ids, check_values, config_values
from anyformer.generation.plan import first_window

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model


@dataclass(frozen=True, kw_only=True)
class SpeechOptions(Settings):
    """Speech options, resolved from the caller's options and the folder's generation config."""

    decoder_start: int
    padding: int
    end: int
    max_prompt: int  # the decoder's number of positions
    no_timestamps_id: int | None = None
    return_timestamps: bool = False
    max_initial_timestamp: int | None = None
    languages: dict[str, int] = field(default_factory=dict, hash=False)
    tasks: dict[str, int] = field(default_factory=dict, hash=False)
    language: Any = None  # one for all rows, or one per row
    task: str | None = None
    forced_decoder_ids: Any = None  # older format of the decoder prompt: ((1, id), (2, id), …)
    temperatures: Any = (None,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_prev_tokens: bool = False  # a window begins with the previous window's text
    prev_sot_id: int | None = None  # the token before the previous text
    prompt: Any = None
    prompt_always: bool = False

    def check(self) -> None:
        if self.return_timestamps and self.no_timestamps_id is None:
            raise InputError("The generation config has no no_timestamps_token_id; leave out return_timestamps.")
        if self.return_timestamps and self.end == NO_ID:
            raise InputError("return_timestamps needs eos_token_id, which the generation config lacks; pass it.")
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise InputError("no_speech_threshold needs logprob_threshold; pass both.")
        if self.no_speech_threshold is not None and self.no_timestamps_id is None:
            raise InputError("no_speech_threshold needs no_timestamps_token_id, which the generation config lacks.")
        if self.prompt_always and not self.condition_on_prev_tokens:
            raise InputError('prompt_condition_type "all-segments" needs condition_on_prev_tokens=True.')

    @property
    def timestamp_begin(self) -> int:
        """Token id of 0.00 seconds; without timestamps, an id outside the vocabulary."""
        return 2**31 if self.no_timestamps_id is None else self.no_timestamps_id + 1


def read_speech_options(model: Model, options: dict[str, Any], long: bool) -> SpeechOptions:
    """Pop the speech options and merge them with the generation config."""
    file = {**model.origin.generation, **config_values(options.get("generation_config"))}
    given = {name: options.pop(name, None) for name in SPEECH_OPTIONS}
    if long and given["return_timestamps"] is False:
        raise InputError("Audio longer than one window needs return_timestamps=True to find the next window.")
    given = {name: file.get(name) if value is None else value for name, value in given.items()}
    check_values(given, schema=SPEECH_SCHEMA)
    if given["is_multilingual"] is False and (given["task"] is not None or given["language"] is not None):
        raise InputError("This model is English-only (is_multilingual is False); leave out language and task.")
    settings, temperature = model.config.to_json(), given["temperature"]
    ids = {name: _id(options, file, theirs, settings[name]) for name, theirs in _IDS.items()}
    suppressed = as_ids(options.get("suppress_tokens") or file.get("suppress_tokens"))
    previous = given["prev_sot_token_id"]
    return SpeechOptions(
        decoder_start=ids["decoder_start"],
        padding=ids["padding"],
        end=ids["end"],
        max_prompt=settings["max_length"],
        no_timestamps_id=given["no_timestamps_token_id"],
        return_timestamps=bool(given["return_timestamps"]) or long,
        max_initial_timestamp=given["max_initial_timestamp_index"],
        languages=given["lang_to_id"] or {},
        tasks=given["task_to_id"] or {},
        language=given["language"],
        task=given["task"],
        forced_decoder_ids=given["forced_decoder_ids"],
        temperatures=tuple(temperature) if isinstance(temperature, (list, tuple)) else (temperature,),
        compression_ratio_threshold=given["compression_ratio_threshold"],
        logprob_threshold=given["logprob_threshold"],
        no_speech_threshold=given["no_speech_threshold"],
        condition_on_prev_tokens=bool(given["condition_on_prev_tokens"]),
        prev_sot_id=suppressed[-2] if previous is None and len(suppressed) > 1 else previous,
        prompt=given["prompt_ids"],
        prompt_always=given["prompt_condition_type"] == "all-segments",
    )


NO_ID = -1  # if the model has no end token
_IDS = {"decoder_start": "decoder_start_token_id", "padding": "pad_token_id", "end": "eos_token_id"}


def _id(options: Mapping[str, Any], file: Mapping[str, Any], theirs: str, own: int | None) -> int:
    found = as_ids(options.get(theirs) if options.get(theirs) is not None else file.get(theirs))
    return found[0] if found else NO_ID if own is None and theirs == "eos_token_id" else int(own or 0)


def cut_window(features: Tensor, start: int, end: int, window: int) -> Tensor:
    piece = features[..., start : min(end, start + window)]
    return F.pad(piece, (0, window - piece.shape[-1]))


def decoder_prompts(model: Model, features: Tensor, options: SpeechOptions) -> Tensor:
    """Decoder prompts [B, n]: start token, language, task and whether to predict timestamps."""
    batch = len(features)
    begin: list[int | None] = [options.decoder_start]
    if options.task is None and options.language is None:
        begin += [token for _, token in sorted((place, token) for place, token in options.forced_decoder_ids or ())]
    undefined = len(begin) < 2 or begin[1] is None
    languages = options.language if isinstance(options.language, (list, tuple)) else [options.language] * batch
    if len(languages) != batch:
        raise InputError(f"language has {len(languages)} entries for {batch} rows; give one, or one per row.")
    language_ids: list[int | None] = [None] * batch
    if options.language is not None:
        language_ids = [language_id(language, options.languages) for language in languages]
    elif options.languages and undefined:
        language_ids = list(detect_language(model, features, options))
    return torch.tensor([_prompt_ids(begin, one, options) for one in language_ids], device=features.device)


def _prompt_ids(begin: Sequence[int | None], language: int | None, options: SpeechOptions) -> list[int]:
    ids = list(begin)
    if language is not None:
        ids[1:2] = [language]
    tasks = set(options.tasks.values())
    if options.task is not None:
        if options.task not in options.tasks:
            known = ", ".join(options.tasks) or "none"
            raise InputError(
                f'The model has no task "{options.task}".{nearest(options.task, options.tasks)} Tasks: {known}.'
            )
        ids = [token for token in ids if token not in tasks] + [options.tasks[options.task]]
    elif options.language is not None and tasks and not tasks & set(ids):
        ids.append(options.tasks["transcribe"])
    if options.no_timestamps_id is not None:
        ids = ids[:-1] if ids[-1] == options.no_timestamps_id else ids
        ids += [] if options.return_timestamps else [options.no_timestamps_id]
    return [token for token in ids if token is not None]


def language_id(language: str, known: Mapping[str, int]) -> int:
    """Return the token id of a language, given as "English", "en" or "<|en|>"."""
    from anyformer.tokenizers.languages import CODES

    name = language.lower()
    for one in (name, f"<|{name}|>", f"<|{CODES.get(name, name)}|>"):
        if one in known:
            return known[one]
    names = [code.strip("<|>") for code in known]
    hint = nearest(name, [*names, *CODES])
    raise InputError(f'The model has no language "{language}".{hint} Languages: {", ".join(names) or "none"}.')


def detect_language(model: Model, features: Tensor, options: SpeechOptions) -> list[int]:
    """The most probable language of each row's first window."""
    window = first_window(model)
    assert window is not None
    start = torch.full((len(features), 1), options.decoder_start, device=features.device)
    scores = model(input_features=cut_window(features, 0, window, window), decoder_input_ids=start).logits[:, -1]
    ids = torch.tensor(list(options.languages.values()), device=scores.device)
    found: list[int] = ids[scores[:, ids].argmax(dim=1)].tolist()
    return found
