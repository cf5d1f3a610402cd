"""How to listen, and what a transcript begins with: the start token, the language, the task, and whether times are
told (Radford et al. 2022, §2.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.errors import InputError, nearest
from anyformer.generation.limits import SPEECH_SCHEMA, check_values
from anyformer.generation.options import SPEECH_OPTIONS, as_ids

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model


def window_frames(model: Model) -> int | None:
    """How many frames of sound a model hears at a time; None: it does not hear."""
    encoder: Any = next(iter(model.stages.values()))
    window: int | None = encoder.inputs.window
    return window


@dataclass(frozen=True, kw_only=True)
class SpeechOptions(Settings):
    """How to listen, resolved from the caller's options and the folder's generation config."""

    decoder_start: int
    padding: int
    end: int
    max_prompt: int  # the decoder's positions
    no_timestamps_id: int | None = None
    return_timestamps: bool = False
    max_initial_timestamp: int | None = None
    languages: dict[str, int] = field(default_factory=dict, hash=False)
    tasks: dict[str, int] = field(default_factory=dict, hash=False)
    language: Any = None  # one for all rows, or one a row
    task: str | None = None
    forced_decoder_ids: Any = None  # an older way of saying how the answer begins: ((1, id), (2, id), …)
    temperatures: Any = (None,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_prev_tokens: bool = False  # a window begins with what the last one said
    prev_sot_id: int | None = None  # the token before that
    prompt: Any = None
    prompt_always: bool = False

    def check(self) -> None:
        if self.return_timestamps and self.no_timestamps_id is None:
            raise InputError("The generation config does not say no_timestamps_token_id, so no times can be told.")
        if self.return_timestamps and self.end == NO_ID:
            raise InputError("Times need the token that ends a text, which the folder does not say; give eos_token_id.")
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise InputError("no_speech_threshold needs logprob_threshold beside it.")
        if self.no_speech_threshold is not None and self.no_timestamps_id is None:
            raise InputError("The generation config does not say which token means silence.")
        if self.prompt_always and not self.condition_on_prev_tokens:
            raise InputError('prompt_condition_type "all-segments" needs condition_on_prev_tokens=True.')

    @property
    def timestamp_begin(self) -> int:
        """The token of 0.00 seconds; where there is none, an id that no word has."""
        return 2**31 if self.no_timestamps_id is None else self.no_timestamps_id + 1


def read_speech_options(model: Model, options: dict[str, Any], long: bool) -> SpeechOptions:
    """Take the options of listening out of the others."""
    file = model.origin.generation
    given = {name: options.pop(name, None) for name in SPEECH_OPTIONS}
    if long and given["return_timestamps"] is False:
        raise InputError("Sound longer than one window needs return_timestamps=True: the times say where to go on.")
    given = {name: file.get(name) if value is None else value for name, value in given.items()}
    check_values(given, schema=SPEECH_SCHEMA)
    if given["is_multilingual"] is False and (given["task"] is not None or given["language"] is not None):
        raise InputError("This model knows English alone; leave out language and task.")
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


NO_ID = -1  # of a model that does not say how its texts end
_IDS = {"decoder_start": "decoder_start_token_id", "padding": "pad_token_id", "end": "eos_token_id"}


def _id(options: Mapping[str, Any], file: Mapping[str, Any], theirs: str, own: int | None) -> int:
    found = as_ids(options.get(theirs) if options.get(theirs) is not None else file.get(theirs))
    return found[0] if found else NO_ID if own is None and theirs == "eos_token_id" else int(own or 0)


def cut_window(features: Tensor, start: int, end: int, window: int) -> Tensor:
    piece = features[..., start : min(end, start + window)]
    return F.pad(piece, (0, window - piece.shape[-1]))


def decoder_prompts(model: Model, features: Tensor, options: SpeechOptions) -> Tensor:
    """[B, n]: the start token, the language, the task, and whether times are told."""
    batch = len(features)
    begin: list[int | None] = [options.decoder_start]
    if options.task is None and options.language is None:
        begin += [token for _, token in sorted((place, token) for place, token in options.forced_decoder_ids or ())]
    unsaid = len(begin) < 2 or begin[1] is None
    languages = options.language if isinstance(options.language, (list, tuple)) else [options.language] * batch
    if len(languages) != batch:
        raise InputError(f"language has {len(languages)} entries for {batch} rows; give one, or one a row.")
    spoken: list[int | None] = [None] * batch
    if options.language is not None:
        spoken = [language_id(language, options.languages) for language in languages]
    elif options.languages and unsaid:
        spoken = list(detect_language(model, features, options))
    return torch.tensor([_prompt_ids(begin, one, options) for one in spoken], device=features.device)


def _prompt_ids(begin: Sequence[int | None], language: int | None, options: SpeechOptions) -> list[int]:
    said = list(begin)
    if language is not None:
        said[1:2] = [language]
    tasks = set(options.tasks.values())
    if options.task is not None:
        if options.task not in options.tasks:
            known = ", ".join(options.tasks) or "none"
            raise InputError(
                f'There is no task "{options.task}".{nearest(options.task, options.tasks)} The model knows: {known}.'
            )
        said = [token for token in said if token not in tasks] + [options.tasks[options.task]]
    elif options.language is not None and tasks and not tasks & set(said):
        said.append(options.tasks["transcribe"])
    if options.no_timestamps_id is not None:
        said = said[:-1] if said[-1] == options.no_timestamps_id else said
        said += [] if options.return_timestamps else [options.no_timestamps_id]
    return [token for token in said if token is not None]


def language_id(language: str, known: Mapping[str, int]) -> int:
    """English, en and <|en|> are one."""
    from anyformer.tokenizers.languages import CODES

    name = language.lower()
    for one in (name, f"<|{name}|>", f"<|{CODES.get(name, name)}|>"):
        if one in known:
            return known[one]
    names = [code.strip("<|>") for code in known]
    hint = nearest(name, [*names, *CODES])
    raise InputError(
        f'The model does not know the language "{language}".{hint} It knows: {", ".join(names) or "none"}.'
    )


def detect_language(model: Model, features: Tensor, options: SpeechOptions) -> list[int]:
    """The most probable language of each row's first window."""
    window = window_frames(model)
    assert window is not None
    start = torch.full((len(features), 1), options.decoder_start, device=features.device)
    scores = model(input_features=cut_window(features, 0, window, window), decoder_input_ids=start).logits[:, -1]
    ids = torch.tensor(list(options.languages.values()), device=scores.device)
    found: list[int] = ids[scores[:, ids].argmax(dim=1)].tolist()
    return found
