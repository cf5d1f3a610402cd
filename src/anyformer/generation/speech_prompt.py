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

    start: int
    padding: int
    end: int
    room: int  # the decoder's positions
    no_stamps: int | None = None
    stamped: bool = False
    latest: int | None = None
    languages: dict[str, int] = field(default_factory=dict, hash=False)
    tasks: dict[str, int] = field(default_factory=dict, hash=False)
    language: Any = None  # one for all rows, or one a row
    task: str | None = None
    forced: Any = None  # an older way of saying how the answer begins: ((1, id), (2, id), …)
    temperatures: Any = (None,)
    compression: float | None = None
    logprob: float | None = None
    no_speech: float | None = None
    follows: bool = False  # a window begins with what the last one said
    previous: int | None = None  # the token before that
    prompt: Any = None
    prompt_always: bool = False

    def check(self) -> None:
        if self.stamped and self.no_stamps is None:
            raise InputError("The generation config does not say no_timestamps_token_id, so no times can be told.")
        if self.stamped and self.end == NO_ID:
            raise InputError("Times need the token that ends a text, which the folder does not say; give eos_token_id.")
        if self.no_speech is not None and self.logprob is None:
            raise InputError("no_speech_threshold needs logprob_threshold beside it.")
        if self.no_speech is not None and self.no_stamps is None:
            raise InputError("The generation config does not say which token means silence.")
        if self.prompt_always and not self.follows:
            raise InputError('prompt_condition_type "all-segments" needs condition_on_prev_tokens=True.')

    @property
    def first(self) -> int:
        """The token of 0.00 seconds; where there is none, an id that no word has."""
        return 2**31 if self.no_stamps is None else self.no_stamps + 1


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
        start=ids["decoder_start"],
        padding=ids["padding"],
        end=ids["end"],
        room=settings["max_length"],
        no_stamps=given["no_timestamps_token_id"],
        stamped=bool(given["return_timestamps"]) or long,
        latest=given["max_initial_timestamp_index"],
        languages=given["lang_to_id"] or {},
        tasks=given["task_to_id"] or {},
        language=given["language"],
        task=given["task"],
        forced=given["forced_decoder_ids"],
        temperatures=tuple(temperature) if isinstance(temperature, (list, tuple)) else (temperature,),
        compression=given["compression_ratio_threshold"],
        logprob=given["logprob_threshold"],
        no_speech=given["no_speech_threshold"],
        follows=bool(given["condition_on_prev_tokens"]),
        previous=suppressed[-2] if previous is None and len(suppressed) > 1 else previous,
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


def decoder_prompts(model: Model, features: Tensor, wish: SpeechOptions) -> Tensor:
    """[B, n]: the start token, the language, the task, and whether times are told."""
    batch = len(features)
    begin: list[int | None] = [wish.start]
    if wish.task is None and wish.language is None:
        begin += [token for _, token in sorted((place, token) for place, token in wish.forced or ())]
    unsaid = len(begin) < 2 or begin[1] is None
    languages = wish.language if isinstance(wish.language, (list, tuple)) else [wish.language] * batch
    if len(languages) != batch:
        raise InputError(f"language has {len(languages)} entries for {batch} rows; give one, or one a row.")
    spoken: list[int | None] = [None] * batch
    if wish.language is not None:
        spoken = [language_id(language, wish.languages) for language in languages]
    elif wish.languages and unsaid:
        spoken = list(detect_language(model, features, wish))
    return torch.tensor([_prompt_ids(begin, one, wish) for one in spoken], device=features.device)


def _prompt_ids(begin: Sequence[int | None], language: int | None, wish: SpeechOptions) -> list[int]:
    said = list(begin)
    if language is not None:
        said[1:2] = [language]
    tasks = set(wish.tasks.values())
    if wish.task is not None:
        if wish.task not in wish.tasks:
            known = ", ".join(wish.tasks) or "none"
            raise InputError(
                f'There is no task "{wish.task}".{nearest(wish.task, wish.tasks)} The model knows: {known}.'
            )
        said = [token for token in said if token not in tasks] + [wish.tasks[wish.task]]
    elif wish.language is not None and tasks and not tasks & set(said):
        said.append(wish.tasks["transcribe"])
    if wish.no_stamps is not None:
        said = said[:-1] if said[-1] == wish.no_stamps else said
        said += [] if wish.stamped else [wish.no_stamps]
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


def detect_language(model: Model, features: Tensor, wish: SpeechOptions) -> list[int]:
    """The likeliest language of each row's first window."""
    window = window_frames(model)
    assert window is not None
    start = torch.full((len(features), 1), wish.start, device=features.device)
    scores = model(input_features=cut_window(features, 0, window, window), decoder_input_ids=start).logits[:, -1]
    ids = torch.tensor(list(wish.languages.values()), device=scores.device)
    found: list[int] = ids[scores[:, ids].argmax(dim=1)].tolist()
    return found
