"""Transcription of audio of any length (Radford et al. 2022, §4.5): decoder prompts, windows, and temperature fallback.
Each window is decoded by the loop of `engine`.

    ids = model.generate(input_features, language="de", task="transcribe", return_timestamps=True)
    out = model.generate(input_features, return_segments=True)     # out.segments: {"start", "end", "tokens"} of each

The ids equal those of transformers: new tokens only, without the end token, also with `decoder_input_ids`. With
`return_dict_in_generate` and without timestamps, a single window returns an Output with prompt and end token. With
timestamps each segment holds the Output of its window as "result". A list of `temperature` values is tried in order
until a row is neither more repetitive than `compression_ratio_threshold` nor less likely than `logprob_threshold`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.generation.observer import OUTPUT_FLAGS, pop_output_flags
from anyformer.generation.options import config_values
from anyformer.generation.plan import first_window, vocab_size
from anyformer.generation.speech_prompt import SpeechOptions, cut_window, decoder_prompts, read_speech_options
from anyformer.generation.timestamps import TimestampRules

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

TIME_PRECISION = 0.02  # seconds between two timestamps; one token of the encoder
STRIDE = 2  # frames per TIME_PRECISION
COOL = 0.5  # only text decoded below this temperature conditions the next window
BEGUN = ("decoder_input_ids", "decoder_attention_mask")  # the caller's prompt for the first window


@dataclass
class AudioRow:
    """Progress in one audio: `seek` of `frames` are transcribed."""

    frames: int
    seek: int = 0
    segments: list[dict[str, Any]] = field(default_factory=list)
    condition_on_prev_tokens: bool = False


def generate(model: Model, options: dict[str, Any]) -> Tensor | Output:
    """Transcribe `input_features` [B, mels, frames] of any length; `attention_mask` [B, frames] gives their lengths."""
    features, mask = _take_features(options)
    begun = _take_begun(options, len(features))
    shown = {name: options.pop(name) for name in OUTPUT_FLAGS if name in options}
    wants_more = pop_output_flags(dict(shown)) is not None
    window = first_window(model)
    assert window is not None
    speech = read_speech_options(model, options, features.shape[2] > window)
    wants_segments = options.pop("return_segments", False)
    many = options.pop("num_return_sequences", None) or 1
    start_ids = decoder_prompts(model, features, speech).repeat_interleave(many, dim=0)
    rows = [
        AudioRow(frames, condition_on_prev_tokens=speech.condition_on_prev_tokens)
        for frames in _lengths(features, mask, window)
        for _ in range(many)
    ]
    if speech.prompt is not None and speech.condition_on_prev_tokens and not speech.prompt_always:
        ids = torch.as_tensor(speech.prompt)
        ids = ids[1:] if int(ids[0]) == speech.prev_sot_id else ids
        for row in rows:
            row.segments.append({"tokens": ids.tolist(), "prompt": True})
    features = features.repeat_interleave(many, dim=0)
    begun = {name: value.repeat_interleave(many, dim=0) for name, value in begun.items()}
    generator = SpeechGenerator(model, speech, window, options, begun, shown if wants_more else {})
    if wants_more and not speech.return_timestamps:
        return generator.decode_once(features, start_ids, rows)
    generator.run(features, start_ids, rows)
    return _report(rows, speech, features.device, wants_segments or wants_more)


def _take_features(options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    given = [options.pop(name) for name in ("inputs", "input_features") if options.get(name) is not None]
    if len(given) != 1 or not isinstance(given[0], Tensor) or given[0].dim() != 3:
        raise InputError("generate needs input_features of shape [batch, mels, frames], once.")
    return given[0], options.pop("attention_mask", None)


def _take_begun(options: dict[str, Any], rows: int) -> dict[str, Tensor]:
    """Pop the caller's decoder prompt: ids [rows, n] and their mask."""
    begun = {name: options.pop(name) for name in BEGUN if options.get(name) is not None}
    for name, value in begun.items():
        if BEGUN[0] not in begun or not isinstance(value, Tensor) or value.dim() != 2 or len(value) != rows:
            raise InputError(f"{name} must be a tensor of shape [{rows}, tokens], with {BEGUN[0]} of the same shape.")
    return begun


def _lengths(features: Tensor, mask: Tensor | None, window: int) -> list[int]:
    rows, _, frames = features.shape
    if frames <= window or (rows == 1 and mask is None):
        return [frames] * rows
    if mask is None:
        raise InputError("Several long audios in one batch need attention_mask [batch, frames] for their lengths.")
    return mask.sum(dim=1).tolist() if rows > 1 else [frames]


@dataclass
class WindowResult:
    """The tokens of one window and how they were decoded."""

    tokens: list[int]
    no_speech: bool
    low_temperature: bool  # the temperature was low enough to condition the next window
    result: Output | None = None  # the row's part of the Output, if the caller asks for more than ids
    start_length: int = 0  # prompt tokens before `tokens` in the result


class SpeechGenerator:
    """Decode the windows of every row by the loop of `engine`."""

    def __init__(
        self,
        model: Model,
        speech: SpeechOptions,
        window: int,
        options: Mapping[str, Any],
        begun: Mapping[str, Tensor],
        shown: Mapping[str, Any],
    ) -> None:
        self.model, self.speech, self.window, self.options = model, speech, window, options
        self.begun, self.shown = begun, shown

    def run(self, features: Tensor, start_ids: Tensor, rows: list[AudioRow]) -> None:
        """Decode all windows of all rows; unfinished rows are batched."""
        while active := [i for i, row in enumerate(rows) if row.seek < row.frames]:
            pieces = [cut_window(features[i], rows[i].seek, rows[i].frames, self.window) for i in active]
            prompt, mask = self.prompts(start_ids[active], [rows[i] for i in active], rows[0])
            self.begun = {}
            windows = self.decode_with_fallback(torch.stack(pieces), prompt, mask, start_ids.shape[1])
            for i, window in zip(active, windows, strict=True):
                self.add_segments(rows[i], window)

    def decode_once(self, features: Tensor, start_ids: Tensor, rows: list[AudioRow]) -> Output:
        """Decode a single window of every row and return the whole Output."""
        if len(self.speech.temperatures) > 1:
            raise InputError(
                f"temperature is {self.speech.temperatures}; scores without timestamps need one temperature;"
                " give one, or pass return_timestamps=True to get the scores of each segment."
            )
        pieces = torch.stack([cut_window(x, 0, row.frames, self.window) for x, row in zip(features, rows, strict=True)])
        begin = self.begin(pieces, *self.prompts(start_ids, rows, rows[0]))
        return self.call(begin, self.speech.temperatures[0], list(range(len(rows))))

    def add_segments(self, row: AudioRow, window: WindowResult) -> None:
        row.condition_on_prev_tokens = self.speech.condition_on_prev_tokens and window.low_temperature
        length = min(row.frames - row.seek, self.window)
        if window.no_speech:
            row.seek += length
            return
        segments, moved = cut_segments(
            window.tokens, self.speech.timestamp_begin, row.seek * TIME_PRECISION / STRIDE, length
        )
        if window.result is not None:
            ends = accumulate((len(segment["tokens"]) for segment in segments), initial=window.start_length)
            for segment, place in zip(segments, pairwise(ends), strict=True):
                segment.update(idxs=place, result=window.result)
        row.segments += segments
        row.seek += moved

    def prompts(self, start_ids: Tensor, rows: list[AudioRow], first: AudioRow) -> tuple[Tensor, Tensor | None]:
        """Return the decoder prompt and its mask: previous text, if requested, and the start tokens."""
        speech, device = self.speech, start_ids.device
        if self.begun:
            return self.begun[BEGUN[0]], self.begun.get(BEGUN[1])
        if any(row.condition_on_prev_tokens for row in rows) and first.segments:
            head = [speech.prev_sot_id] if speech.prev_sot_id is not None else []
            head = (
                torch.as_tensor(speech.prompt).tolist() if speech.prompt is not None and speech.prompt_always else head
            )
            most = speech.max_prompt // 2 - 1
            before = [
                head
                + (_all_tokens(row.segments, speech.timestamp_begin)[-most:] if row.condition_on_prev_tokens else [])
                for row in rows
            ]
            longest = max(map(len, before))
            filled = [[speech.padding] * (longest - len(one)) + one for one in before]
            prompt = torch.cat([torch.tensor(filled, dtype=torch.long, device=device), start_ids], dim=1)
            return prompt, prompt != speech.padding
        if speech.prompt is not None:
            ids = torch.as_tensor(speech.prompt, device=device).long()
            return torch.cat([ids.expand(len(start_ids), -1), start_ids], dim=1), None
        return start_ids, None

    def decode_with_fallback(
        self, pieces: Tensor, prompt: Tensor, mask: Tensor | None, start_length: int
    ) -> list[WindowResult]:
        """Decode each row at the first temperature, and again at the next one if the result fails a threshold."""
        speech, windows = self.speech, [WindowResult([], False, True)] * len(pieces)
        begin = self.begin(pieces, prompt, mask)
        silence = self.no_speech_probs(begin, start_length)
        pending = list(range(len(pieces)))
        for temperature in speech.temperatures:
            again = []
            some = {name: value[pending] for name, value in begin.items()}
            for i, (tokens, logprob, result) in zip(pending, self.generate(some, temperature, pending), strict=True):
                unlikely = speech.logprob_threshold is not None and logprob < speech.logprob_threshold
                silent = unlikely and speech.no_speech_threshold is not None and silence[i] > speech.no_speech_threshold
                words = tokens[:-1] if tokens and tokens[-1] == speech.end else tokens
                cool = temperature is None or temperature < COOL
                windows[i] = WindowResult(words, silent, cool, result, prompt.shape[1])
                again += [i] if (unlikely or self.is_repetitive(tokens)) and not silent else []
            pending = again
            if not pending:
                break
        return windows

    def begin(self, pieces: Tensor, prompt: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Return the inputs of a call: windows [B, mels, frames], encoded once, and the decoder prompt."""
        encoded = self.model.encode(input_features=pieces).encoder_tokens["encoder"].x
        begin = {"decoder_input_ids": prompt, "encoder_outputs": encoded}
        return begin if mask is None else {**begin, "decoder_attention_mask": mask}

    def is_repetitive(self, tokens: list[int]) -> bool:
        most = self.speech.compression_ratio_threshold
        return most is not None and compression_ratio(tokens, vocab_size(self.model)) > most

    def no_speech_probs(self, begin: Mapping[str, Tensor], start_length: int) -> list[float]:
        """Return the probability of no speech in each row, from the scores after the start token."""
        speech, prompt = self.speech, begin["decoder_input_ids"]
        if speech.no_speech_threshold is None or speech.no_timestamps_id is None:
            return [0.0] * len(prompt)
        scores = self.model(**begin).logits[:, max(prompt.shape[1] - start_length, 0)]
        found: list[float] = scores.float().log_softmax(dim=-1).exp()[:, speech.no_timestamps_id - 1].tolist()
        return found

    def generate(
        self, begin: Mapping[str, Tensor], temperature: float | None, numbers: list[int]
    ) -> list[tuple[list[int], float, Output | None]]:
        """Return the new tokens of each row with the end token, their mean log-probability if needed, and the Output if
        the caller asks for more than ids.
        """
        length, asks = begin["decoder_input_ids"].shape[1], self.speech.logprob_threshold is not None
        out: Any = self.call(begin, temperature, numbers)
        made, sizes = out.sequences[:, length:], (out.lengths - length).tolist()
        tokens = [row[:size] for row, size in zip(made.tolist(), sizes, strict=True)]
        results = [_row_of(out, row) if self.shown else None for row in range(len(tokens))]
        return list(zip(tokens, _mean_logprobs(out, made, sizes, temperature, asks), results, strict=True))

    def call(self, begin: Mapping[str, Tensor], temperature: float | None, numbers: list[int]) -> Output:
        """Run the loop of `engine` for the rows with these indices; select the scores of the returned beams."""
        from anyformer.generation.engine import run_generation

        speech, length = self.speech, begin["decoder_input_ids"].shape[1]
        warm = temperature is not None and temperature > 0
        chosen = {**self.options, **self.lengths(length), "do_sample": warm}
        seed = chosen.pop("seed", None)
        if warm:  # a seed per row, only in sampling
            own = None if seed is None else [seed[i] if isinstance(seed, (list, tuple)) else seed + i for i in numbers]
            chosen |= {"temperature": temperature, "num_beams": 1, "seed": own}
        chosen |= {"decoder_start_token_id": None, "bos_token_id": None}  # the decoder prompt is given
        if speech.return_timestamps:
            chosen["stamps"] = TimestampRules(
                timestamp_begin=speech.timestamp_begin,
                no_timestamps_id=speech.timestamp_begin - 1,
                end=speech.end,
                max_initial_timestamp=speech.max_initial_timestamp,
            )
        asks = speech.logprob_threshold is not None
        shown = {"return_dict_in_generate": True, "logprobs": asks and not warm, "output_scores": asks and warm}
        shown |= {name: value for name, value in self.shown.items() if value}
        out: Any = run_generation(self.model, **begin, **chosen, **shown)
        if "beam_indices" in out:
            steps = range(out.beam_indices.shape[1])
            for name in ("scores", "logits"):
                out |= {name: tuple(out[name][i][out.beam_indices[:, i]] for i in steps)} if name in out else {}
        return Output(out).without(out.absent)

    def lengths(self, prompt: int) -> dict[str, int]:
        """Return the length limit: the requested number of tokens beyond the prompt, up to the model's positions."""
        options, room = self.options, self.speech.max_prompt
        file = {**self.model.origin.generation, **config_values(options.get("generation_config"))}
        asked = options.get("max_length")
        if options.get("max_new_tokens", file.get("max_new_tokens")) is not None:
            return {}
        return {"max_length": min((asked or file.get("max_length") or room) + min(room // 2 - 1, prompt), room)}


def _row_of(out: Output, row: int) -> Output:
    """Return one row of an Output: of tensors [rows, …] and of tuples with one such tensor per step."""
    return Output(
        (name, [x[row] for x in value] if isinstance(value, tuple) else value[row]) for name, value in out.items()
    ).without(out.absent)


def _all_tokens(segments: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """Return all tokens so far; a timestamp that ends one segment and begins the next is kept once."""
    ids: list[int] = []
    for segment in segments:
        tokens = segment["tokens"]
        ids += tokens[:-1] if len(tokens) > 2 and tokens[-2] >= first else tokens
    return ids


def _mean_logprobs(out: Output, made: Tensor, sizes: list[int], temperature: float | None, asks: bool) -> list[float]:
    """Mean log-probability of each row's tokens, including the end token, at temperature 1."""
    if not asks:
        return [0.0] * len(sizes)
    if "sequences_scores" in out:
        found: list[float] = out.sequences_scores.tolist()
        return found
    if "scores" in out:
        tables = torch.stack(out.scores, dim=1).float() * (temperature or 1.0)
        logs = tables.log_softmax(dim=-1).gather(2, made.unsqueeze(2)).squeeze(2)
    else:
        logs = out.logprobs
    return [float(row[:size].sum()) / max(size, 1) for row, size in zip(logs, sizes, strict=True)]


def compression_ratio(tokens: list[int], words: int) -> float:
    """Ratio of the tokens' size to their zlib-compressed size; repetitive text has a high ratio."""
    width = (words.bit_length() - 1) // 8 + 1
    raw = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(raw) / len(zlib.compress(raw))


def cut_segments(tokens: list[int], first: int, offset: float, frames: int) -> tuple[list[dict[str, Any]], int]:
    """Return the segments of a window, and the number of frames that they cover: all, or up to the last complete one.

    Two adjacent timestamps separate segments; audio after the last such pair is decoded again.
    """
    is_time = [token >= first for token in tokens]
    alone = is_time[-2:] == [False, True]
    ends = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    if not ends:
        times = [token for token in tokens if token >= first]
        last = times[-1] - first if times and times[-1] != first else frames // STRIDE
        return [{"start": offset, "end": offset + last * TIME_PRECISION, "tokens": tokens}], frames
    ends = [*ends, len(tokens)] if alone else [*ends[:-1], ends[-1] + 1]  # the last segment keeps both timestamps
    segments, start = [], 0
    for end in ends:
        ids = tokens[start:end]
        closes = ids[-2] if end == ends[-1] and not alone else ids[-1]
        times_of = {
            "start": offset + (ids[0] - first) * TIME_PRECISION,
            "end": offset + (closes - first) * TIME_PRECISION,
        }
        segments.append({**times_of, "tokens": ids})
        start = end
    return segments, frames if alone else (tokens[start - 2] - first) * STRIDE


def _report(
    rows: list[AudioRow], options: SpeechOptions, device: torch.device, wants_segments: bool
) -> Tensor | Output:
    kept = [[segment for segment in row.segments if "prompt" not in segment] for row in rows]
    ids = [[token for segment in segments for token in segment["tokens"]] for segments in kept]
    longest = max(map(len, ids))
    filled = [one + [options.padding] * (longest - len(one)) for one in ids]
    sequences = torch.tensor(filled, dtype=torch.long, device=device).view(len(rows), longest)
    return Output(sequences=sequences, segments=kept) if wants_segments else sequences
