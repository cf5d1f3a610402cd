"""Writing down speech (Radford et al. 2022, §4.5): what the answer begins with, windows over sound of any length, and
warmer tries where a window came out badly. Each window is written by the one loop of `engine`.

    ids = model.generate(input_features, language="de", task="transcribe", return_timestamps=True)
    out = model.generate(input_features, return_segments=True)     # out.segments: {"start", "end", "tokens"} of each

The ids are those of transformers: new tokens alone, without the end, also if `decoder_input_ids` gives how the answer
begins. With `return_dict_in_generate` and without times, one window is one answer: an Output with the opening and the
end. With times each segment has the Output of its window as "result". `temperature` may be several, tried one after
another until a row is neither as repetitive as `compression_ratio_threshold` nor less likely than `logprob_threshold`.
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
from anyformer.generation.options import vocab_size
from anyformer.generation.speech_prompt import (
    SpeechOptions,
    cut_window,
    decoder_prompts,
    read_speech_options,
    window_frames,
)
from anyformer.generation.timestamps import TimestampRules

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model

TIME_PRECISION = 0.02  # seconds between two times; one token of the encoder
STRIDE = 2  # frames in that
COOL = 0.5  # temperatures below this are trusted with the next window
BEGUN = ("decoder_input_ids", "decoder_attention_mask")  # how the caller begins the answer of the first window


@dataclass
class AudioRow:
    """One sound on its way: what is heard up to `seek`, of `frames`."""

    frames: int
    seek: int = 0
    segments: list[dict[str, Any]] = field(default_factory=list)
    condition_on_prev_tokens: bool = False


def generate(model: Model, args: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor | Output:
    """Any length of sound: `input_features` [B, mels, frames], with an attention_mask [B, frames] where rows differ."""
    features, mask = _take_features(args, options)
    begun = _take_begun(options, len(features))
    shown = {name: options.pop(name) for name in OUTPUT_FLAGS if name in options}
    wants_more = pop_output_flags(dict(shown)) is not None
    window = window_frames(model)
    assert window is not None
    wish = read_speech_options(model, options, features.shape[2] > window)
    wants_segments = options.pop("return_segments", False)
    many = options.pop("num_return_sequences", None) or 1
    openings = decoder_prompts(model, features, wish).repeat_interleave(many, dim=0)
    rows = [
        AudioRow(frames, condition_on_prev_tokens=wish.condition_on_prev_tokens)
        for frames in _lengths(features, mask, window)
        for _ in range(many)
    ]
    if wish.prompt is not None and wish.condition_on_prev_tokens and not wish.prompt_always:
        said = torch.as_tensor(wish.prompt)
        said = said[1:] if int(said[0]) == wish.prev_sot_id else said
        for row in rows:
            row.segments.append({"tokens": said.tolist(), "prompt": True})
    features = features.repeat_interleave(many, dim=0)
    begun = {name: value.repeat_interleave(many, dim=0) for name, value in begun.items()}
    listener = SpeechGenerator(model, wish, window, options, begun, shown if wants_more else {})
    if wants_more and not wish.return_timestamps:
        return listener.hear_once(features, openings, rows)
    listener.run(features, openings, rows)
    return _report(rows, wish, features.device, wants_segments or wants_more)


def _take_features(args: tuple[Tensor, ...], options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    given = [*args, *(options.pop(name) for name in ("inputs", "input_features") if options.get(name) is not None)]
    if len(given) != 1 or not isinstance(given[0], Tensor) or given[0].dim() != 3:
        raise InputError("generate needs input_features of shape [batch, mels, frames], once.")
    return given[0], options.pop("attention_mask", None)


def _take_begun(options: dict[str, Any], rows: int) -> dict[str, Tensor]:
    """How the caller begins the answers: ids [rows, n], and which of them are real."""
    begun = {name: options.pop(name) for name in BEGUN if options.get(name) is not None}
    for name, value in begun.items():
        if BEGUN[0] not in begun or not isinstance(value, Tensor) or value.dim() != 2 or len(value) != rows:
            raise InputError(f"{name} must be a tensor of shape [{rows}, tokens], beside {BEGUN[0]} of the same shape.")
    return begun


def _lengths(features: Tensor, mask: Tensor | None, window: int) -> list[int]:
    rows, _, frames = features.shape
    if frames <= window or (rows == 1 and mask is None):
        return [frames] * rows
    if mask is None:
        raise InputError("Several long sounds in one batch need an attention_mask that says where each ends.")
    return mask.sum(dim=1).tolist() if rows > 1 else [frames]


@dataclass
class WindowResult:
    """What came out of one window."""

    tokens: list[int]
    no_speech: bool
    low_temperature: bool  # said at so low a temperature that the next window may build on it
    result: Output | None = None  # the row's part of what `generate` shows, if the caller asks for more than ids
    opening: int = 0  # tokens in front of `tokens` in it


class SpeechGenerator:
    """Hears one window after another of every row, and writes each by the loop of `engine`."""

    def __init__(
        self,
        model: Model,
        wish: SpeechOptions,
        window: int,
        options: Mapping[str, Any],
        begun: Mapping[str, Tensor],
        shown: Mapping[str, Any],
    ) -> None:
        self.model, self.wish, self.window, self.options = model, wish, window, options
        self.begun, self.shown = begun, shown

    def run(self, features: Tensor, openings: Tensor, rows: list[AudioRow]) -> None:
        """To the end of every row, those that are not there yet side by side."""
        while active := [i for i, row in enumerate(rows) if row.seek < row.frames]:
            pieces = [cut_window(features[i], rows[i].seek, rows[i].frames, self.window) for i in active]
            prompt, mask = self.prompts(openings[active], [rows[i] for i in active], rows[0])
            self.begun = {}
            heard = self.decode_with_fallback(torch.stack(pieces), prompt, mask, openings.shape[1])
            for i, one in zip(active, heard, strict=True):
                self.add_segments(rows[i], one)

    def hear_once(self, features: Tensor, openings: Tensor, rows: list[AudioRow]) -> Output:
        """One window of every row by a single call, with all that it shows."""
        if len(self.wish.temperatures) > 1:
            raise InputError(
                f"temperature is {self.wish.temperatures}, but scores are returned for one temperature only; give one,"
                " or return_timestamps=True for the scores of each segment."
            )
        pieces = torch.stack([cut_window(x, 0, row.frames, self.window) for x, row in zip(features, rows, strict=True)])
        begin = self.begin(pieces, *self.prompts(openings, rows, rows[0]))
        return self.call(begin, self.wish.temperatures[0], list(range(len(rows))))

    def add_segments(self, row: AudioRow, heard: WindowResult) -> None:
        row.condition_on_prev_tokens = self.wish.condition_on_prev_tokens and heard.low_temperature
        length = min(row.frames - row.seek, self.window)
        if heard.no_speech:
            row.seek += length
            return
        segments, moved = cut_segments(
            heard.tokens, self.wish.timestamp_begin, row.seek * TIME_PRECISION / STRIDE, length
        )
        if heard.result is not None:
            ends = accumulate((len(segment["tokens"]) for segment in segments), initial=heard.opening)
            for segment, place in zip(segments, pairwise(ends), strict=True):
                segment.update(idxs=place, result=heard.result)
        row.segments += segments
        row.seek += moved

    def prompts(self, openings: Tensor, rows: list[AudioRow], first: AudioRow) -> tuple[Tensor, Tensor | None]:
        """What the decoder reads first: what was said before, where that is wanted, and how the answer begins."""
        wish, device = self.wish, openings.device
        if self.begun:
            return self.begun[BEGUN[0]], self.begun.get(BEGUN[1])
        if any(row.condition_on_prev_tokens for row in rows) and first.segments:
            head = [wish.prev_sot_id] if wish.prev_sot_id is not None else []
            head = torch.as_tensor(wish.prompt).tolist() if wish.prompt is not None and wish.prompt_always else head
            most = wish.max_prompt // 2 - 1
            before = [
                head + (_all_tokens(row.segments, wish.timestamp_begin)[-most:] if row.condition_on_prev_tokens else [])
                for row in rows
            ]
            longest = max(map(len, before))
            filled = [[wish.padding] * (longest - len(one)) + one for one in before]
            prompt = torch.cat([torch.tensor(filled, dtype=torch.long, device=device), openings], dim=1)
            return prompt, prompt != wish.padding
        if wish.prompt is not None:
            said = torch.as_tensor(wish.prompt, device=device).long()
            return torch.cat([said.expand(len(openings), -1), openings], dim=1), None
        return openings, None

    def decode_with_fallback(
        self, pieces: Tensor, prompt: Tensor, mask: Tensor | None, opening: int
    ) -> list[WindowResult]:
        """Each row at the first temperature, those that come out badly at the next."""
        wish, heard = self.wish, [WindowResult([], False, True)] * len(pieces)
        begin = self.begin(pieces, prompt, mask)
        silence = self.no_speech_probs(begin, opening)
        pending = list(range(len(pieces)))
        for temperature in wish.temperatures:
            again = []
            some = {name: value[pending] for name, value in begin.items()}
            for i, (tokens, chance, result) in zip(pending, self.generate(some, temperature, pending), strict=True):
                unlikely = wish.logprob_threshold is not None and chance < wish.logprob_threshold
                silent = unlikely and wish.no_speech_threshold is not None and silence[i] > wish.no_speech_threshold
                words = tokens[:-1] if tokens and tokens[-1] == wish.end else tokens
                cool = temperature is None or temperature < COOL
                heard[i] = WindowResult(words, silent, cool, result, prompt.shape[1])
                again += [i] if (unlikely or self.is_repetitive(tokens)) and not silent else []
            pending = again
            if not pending:
                break
        return heard

    def begin(self, pieces: Tensor, prompt: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """What a call is given: windows [B, mels, frames], encoded once, and how their answers begin."""
        encoded = self.model.encode(input_features=pieces).encoder_tokens["encoder"].x
        begin = {"decoder_input_ids": prompt, "encoder_outputs": encoded}
        return begin if mask is None else {**begin, "decoder_attention_mask": mask}

    def is_repetitive(self, tokens: list[int]) -> bool:
        most = self.wish.compression_ratio_threshold
        return most is not None and compression_ratio(tokens, vocab_size(self.model)) > most

    def no_speech_probs(self, begin: Mapping[str, Tensor], opening: int) -> list[float]:
        """The chance of silence in each row, told by the token after the start."""
        wish, prompt = self.wish, begin["decoder_input_ids"]
        if wish.no_speech_threshold is None or wish.no_timestamps_id is None:
            return [0.0] * len(prompt)
        scores = self.model(**begin).logits[:, max(prompt.shape[1] - opening, 0)]
        found: list[float] = scores.float().log_softmax(dim=-1).exp()[:, wish.no_timestamps_id - 1].tolist()
        return found

    def generate(
        self, begin: Mapping[str, Tensor], temperature: float | None, numbers: list[int]
    ) -> list[tuple[list[int], float, Output | None]]:
        """The new tokens of each row, the end among them, the mean of their log-probabilities where it matters, and
        what else the caller asks to see.
        """
        length, asks = begin["decoder_input_ids"].shape[1], self.wish.logprob_threshold is not None
        out: Any = self.call(begin, temperature, numbers)
        made, sizes = out.sequences[:, length:], (out.lengths - length).tolist()
        tokens = [row[:size] for row, size in zip(made.tolist(), sizes, strict=True)]
        results = [_row_of(out, row) if self.shown else None for row in range(len(tokens))]
        return list(zip(tokens, _mean_logprobs(out, made, sizes, temperature, asks), results, strict=True))

    def call(self, begin: Mapping[str, Tensor], temperature: float | None, numbers: list[int]) -> Output:
        """The loop of `engine`, once, for the rows with these numbers; scores of beams are those of the rows."""
        from anyformer.generation.engine import run_generation

        wish, length = self.wish, begin["decoder_input_ids"].shape[1]
        warm = temperature is not None and temperature > 0
        chosen = {**self.options, **self.lengths(length), "do_sample": warm}
        seed = chosen.pop("seed", None)
        if warm:  # only what is drawn takes a seed, each row its own
            own = None if seed is None else [seed[i] if isinstance(seed, (list, tuple)) else seed + i for i in numbers]
            chosen |= {"temperature": temperature, "num_beams": 1, "seed": own}
        chosen |= {"decoder_start_token_id": None, "bos_token_id": None}  # the answer is begun already
        if wish.return_timestamps:
            chosen["stamps"] = TimestampRules(
                timestamp_begin=wish.timestamp_begin,
                no_timestamps_id=wish.timestamp_begin - 1,
                end=wish.end,
                max_initial_timestamp=wish.max_initial_timestamp,
            )
        asks = wish.logprob_threshold is not None
        shown = {"return_dict_in_generate": True, "logprobs": asks and not warm, "output_scores": asks and warm}
        shown |= {name: value for name, value in self.shown.items() if value}
        out: Any = run_generation(self.model, **begin, **chosen, **shown)
        if "beam_indices" in out:
            steps = range(out.beam_indices.shape[1])
            for name in ("scores", "logits"):
                out |= {name: tuple(out[name][i][out.beam_indices[:, i]] for i in steps)} if name in out else {}
        return Output(out)

    def lengths(self, prompt: int) -> dict[str, int]:
        """As many tokens as are asked for, beyond what the answer begins with, and as fit."""
        options, file, room = self.options, self.model.origin.generation, self.wish.max_prompt
        asked = options.get("max_length")
        if options.get("max_new_tokens", file.get("max_new_tokens")) is not None:
            return {}
        return {"max_length": min((asked or file.get("max_length") or room) + min(room // 2 - 1, prompt), room)}


def _row_of(out: Output, row: int) -> Output:
    """One row of everything: tensors [rows, …], and tuples with one such tensor a step."""
    return Output(
        (name, [x[row] for x in value] if isinstance(value, tuple) else value[row]) for name, value in out.items()
    )


def _all_tokens(segments: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """All tokens so far; a time that closes one thing and opens the next is said once."""
    said: list[int] = []
    for segment in segments:
        tokens = segment["tokens"]
        said += tokens[:-1] if len(tokens) > 2 and tokens[-2] >= first else tokens
    return said


def _mean_logprobs(out: Output, made: Tensor, sizes: list[int], temperature: float | None, asks: bool) -> list[float]:
    """The mean log-probability of each row's tokens, the end's too, at temperature 1."""
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
    """How much shorter the tokens become when packed: large where they repeat themselves."""
    width = (words.bit_length() - 1) // 8 + 1
    raw = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(raw) / len(zlib.compress(raw))


def cut_segments(tokens: list[int], first: int, offset: float, frames: int) -> tuple[list[dict[str, Any]], int]:
    """What was said when, and how many frames were understood: all, or up to where the last thing was finished.

    Two times side by side end one thing and begin the next; what follows the last such pair is heard again.
    """
    is_time = [token >= first for token in tokens]
    alone = is_time[-2:] == [False, True]
    ends = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    if not ends:
        times = [token for token in tokens if token >= first]
        last = times[-1] - first if times and times[-1] != first else frames // STRIDE
        return [{"start": offset, "end": offset + last * TIME_PRECISION, "tokens": tokens}], frames
    ends = [*ends, len(tokens)] if alone else [*ends[:-1], ends[-1] + 1]  # the last keeps both of its times
    segments, start = [], 0
    for end in ends:
        said = tokens[start:end]
        closes = said[-2] if end == ends[-1] and not alone else said[-1]
        times_of = {
            "start": offset + (said[0] - first) * TIME_PRECISION,
            "end": offset + (closes - first) * TIME_PRECISION,
        }
        segments.append({**times_of, "tokens": said})
        start = end
    return segments, frames if alone else (tokens[start - 2] - first) * STRIDE


def _report(
    rows: list[AudioRow], options: SpeechOptions, device: torch.device, wants_segments: bool
) -> Tensor | Output:
    kept = [[segment for segment in row.segments if "prompt" not in segment] for row in rows]
    said = [[token for segment in segments for token in segment["tokens"]] for segments in kept]
    longest = max(map(len, said))
    filled = [one + [options.padding] * (longest - len(one)) for one in said]
    sequences = torch.tensor(filled, dtype=torch.long, device=device).view(len(rows), longest)
    return Output(sequences=sequences, segments=kept) if wants_segments else sequences
