"""A model: named stages, each with inputs, a stack and optionally the stage it attends to, and heads that read them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.core import rewrites
from anyformer.core.cache import Cache
from anyformer.core.linear import Linear
from anyformer.core.taps import Watch, name_taps, watching
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.forward_arguments import LOSS_INPUTS, SIGNED, Argument, positional, unfilled, with_signature
from anyformer.forward_context import IGNORED, ForwardContext, Output, zero_padding
from anyformer.generation.options import (
    GenerateKeywords,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriterion,
    Streamer,
    listing_keywords,
)
from anyformer.heads.base import Head
from anyformer.library_methods import LibraryMethods
from anyformer.output_spec import OutputSpec as OutputSpec
from anyformer.output_spec import put_field
from anyformer.stage import Stage as Stage
from anyformer.stage import given_embeddings

if TYPE_CHECKING:
    from anyformer.generation.continuous_batching import Prompt
    from anyformer.generation.detection import Sizes
    from anyformer.generation.scoring import Continuations, ContinuationScores


@dataclass
class Origin:
    """Where a model came from, so that it can be saved with all the files it was loaded with."""

    recipe: str | None = None
    hf_config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  # tokenizer, preprocessor and other files
    settings: dict[str, Any] = field(default_factory=dict)  # training settings: the sections task, data, train, …
    new: tuple[str, ...] = ()  # tensors of a fine-tuned model that were not in its checkpoint: those of a new head


class Model(LibraryMethods):
    """A model. It is called with transformers' input names, as the Hugging Face class of its architecture.

    `help(model.forward)` shows the arguments of one; `model.points` are the values that `af.look` reads.
    """

    def __init__(
        self,
        family: str,
        config: Settings,
        stages: list[Stage],
        heads: dict[str, Head],
        report: OutputSpec,
        *,
        decoder_start: int | None = None,  # decoder_input_ids are computed from labels (teacher forcing) if it is given
        padding: int | None = None,
        choices: bool = False,  # whether rows are [batch, choices, tokens]
        shifted_from: tuple[str, ...] = ("labels",),  # the decoder reads the first of these that is given, shifted
    ) -> None:
        super().__init__()
        self.family, self.report = family, report
        self.config = copy.copy(config)  # which libraries write to
        self.config.model_type, self.config.tie_word_embeddings = f"anyformer-{family}", getattr(config, "tied", False)
        self.decoder_start, self.padding, self.choices = decoder_start, padding, choices
        self.shifted_from = shifted_from
        self._stage_names, self._head_names = [stage.name for stage in stages], list(heads)
        for name, module in (*((stage.name, stage) for stage in stages), *heads.items()):
            self.add_module(name, module)
        self.origin = Origin()
        self.watch = Watch()
        self.auto_optimize = True  # whether `generate` and tasks may optimize the model
        self.points: list[str] = name_taps(self, self.watch)
        self.names = self._names(stages, heads, report.cache)  # all arguments of `model(**batch)`
        self.accepts_loss_kwargs = "num_items_in_batch" in self.names
        self.by_position = positional(family, getattr(config, "head", None), self.names)
        self.__class__ = with_signature(type(self), family, self.by_position, tuple(self.names))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = next(cls for cls in type(self).__mro__ if cls not in SIGNED.values())
        return unfilled, (plain, self.family, self.by_position, tuple(self.names)), self.__dict__

    @property
    def stages(self) -> dict[str, Stage]:
        return cast("dict[str, Stage]", {name: self._modules[name] for name in self._stage_names})

    @property
    def heads(self) -> dict[str, Head]:
        return cast("dict[str, Head]", {name: self._modules[name] for name in self._head_names})

    def set_heads(self, heads: Mapping[str, Head]) -> None:
        """Replace the heads."""
        for name in self._head_names:
            delattr(self, name)
        self._head_names = list(heads)
        for name, head in heads.items():
            self.add_module(name, head)
        self.points = name_taps(self, self.watch)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @staticmethod
    def _names(stages: list[Stage], heads: dict[str, Head], cache: str) -> list[str]:
        found = [name for names in (*(s.names for s in stages), *(h.names for h in heads.values())) for name in names]
        found += ["output_hidden_states", "output_attentions", "return_dict", "use_cache"]
        found += ["past_key_values", cache] if any(stage.has_cache for stage in stages) else []
        found += ["encoder_outputs"] if "decoder_input_ids" in found else []
        found += ["num_items_in_batch"] if "labels" in found else []
        return list(dict.fromkeys(found))

    def forward(self, *args: Argument, **given: Argument) -> Output:
        batch = self._prepare(args, given)
        state = self._state(batch)
        want_attentions = self._output_flag(batch, "output_attentions", False)
        want_hidden = self._output_flag(batch, "output_hidden_states", False)
        as_dict = self._output_flag(batch, "return_dict", True)
        run = ForwardContext(batch, state, self.training)
        pack = state is None and not self._asks_padding(run)
        if state is None or not state.checked:
            rewrites.apply("check", self)
        with watching(self.watch, *self._globs(want_hidden, want_attentions)) as seen:
            for name, stage in self.stages.items():
                if self._is_due(run, name, stage):
                    stage(run, pack)
                self._remember(run, name, stage)
        out = Output()
        for fields in (run.outputs, *(head(run) for head in self.heads.values())):
            losses = [loss for loss in (out.pop("loss", None), fields.pop("loss", None)) if loss is not None]
            out = Output({**({"loss": sum(losses)} if losses else {}), **out, **fields})
        if "num_items_in_batch" in batch and "loss" in out:
            out["loss"] = out["loss"] * self._n_labels(batch["labels"]) / batch["num_items_in_batch"]
        self._add_fields(out, run, want_hidden, want_attentions, seen.matching)
        if state is not None:
            out["past_key_values"] = out[self.report.cache] = state
        out = out.ordered(self._possible())
        return out if as_dict else cast("Output", self._as_tuple(out))

    def _possible(self) -> set[str]:
        """The fields that this model can give if it is asked for them."""
        losses = {"loss"} if LOSS_INPUTS & set(self.names) else set()
        caches = {"past_key_values", self.report.cache} if "past_key_values" in self.names else set()
        others = {name for head in self.heads.values() for name in head.may_give}
        return {*losses, *caches, *others, *self.report.hidden, *self.report.features, *self.report.attentions}

    def _n_labels(self, labels: Any) -> Tensor:
        """How many labels the loss is the mean of."""
        if not isinstance(labels, Tensor):
            raise InputError("num_items_in_batch needs labels in one tensor.")
        counting = next(head for head in self.heads.values() if "labels" in head.names)
        return counting.count(labels)

    def _as_tuple(self, out: Output) -> tuple[Any, ...]:
        field = self.report.apart
        if field is None or field not in out:
            return out.to_tuple()
        return (*Output({**out, field: out[field][:-1]}).to_tuple(), out[field][-1])

    def _globs(self, hidden: bool, attentions: bool) -> list[str]:
        """The taps for the outputs that the caller asks for. Hidden states are collected elsewhere; they are included
        here so that every block computes all of its tokens."""
        asked = [*(self.report.features.values() if hidden else ()), *([("*.blocks.*.output",)] if hidden else [])]
        asked += [*(self.report.attentions.values() if attentions else ())]
        return [glob for globs in asked for glob in globs]

    def _output_flag(self, batch: dict[str, Any], name: str, default: bool) -> bool:
        """The value given by the caller, or else the one in the config that the model was loaded with."""
        given = batch.pop(name, None)
        return bool(self.origin.hf_config.get(name, default) if given is None else given)

    def encode(self, **batch: Argument) -> Cache:
        """Run every stage that does not decode, and return a cache with their outputs: the start of step-by-step
        decoding."""
        state = Cache()
        run = ForwardContext(self._prepare((), batch), state, self.training)
        rewrites.apply("check", self)
        for name, stage in self.stages.items():
            if not stage.has_cache and self._is_due(run, name, stage):
                stage(run)
            self._remember(run, name, stage)
        return state

    def _prepare(self, args: tuple[Argument, ...], batch: dict[str, Any]) -> dict[str, Any]:
        names = self.names
        if len(args) > len(self.by_position):
            known = ", ".join(self.by_position)
            raise InputError(f"This model takes {known} by position; {len(args)} were given. Give the others by name.")
        for name, value in zip(self.by_position, args, strict=False):
            if batch.get(name) is not None and value is not None:
                raise InputError(f"{name} is given by position and by name; give it once.")
            batch = {name: value, **batch} if value is not None else batch
        batch = {name: value for name, value in batch.items() if value is not None}
        for name in batch:
            if name not in names:
                raise InputError(f'This model takes no "{name}".{nearest(name, names)} It takes: {", ".join(names)}.')
        if self.choices:
            batch = self._flatten(batch)
        given = any(batch.get(f"decoder_{name}") is not None for name in ("input_ids", "inputs_embeds"))
        target = next((batch[name] for name in self.shifted_from if batch.get(name) is not None), None)
        if self.decoder_start is not None and target is not None and not given:
            batch["decoder_input_ids"] = self.shift_right(target)
        return batch

    def shift_right(self, labels: Tensor) -> Tensor:
        """Shift labels to the right to get the decoder's inputs (teacher forcing)."""
        if self.padding is None or self.decoder_start is None:
            raise InputError("labels need a padding id in the model's config, which replaces ignored labels.")
        shifted = F.pad(labels[:, :-1], (1, 0), value=self.decoder_start)
        return shifted.masked_fill(shifted == IGNORED, self.padding)

    def _flatten(self, batch: dict[str, Any]) -> dict[str, Any]:
        """[batch, choices, tokens, …] -> [batch·choices, tokens, …]"""
        flat = dict(batch)
        for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"):
            value = batch.get(name)
            if isinstance(value, Tensor):
                if value.dim() < 3:
                    raise InputError(f"{name} has shape {list(value.shape)}; it must be [batch, choices, tokens, …].")
                flat["choices"] = value.shape[1]
                flat[name] = value.flatten(0, 1)
        return flat

    def _state(self, batch: dict[str, Any]) -> Cache | None:
        named = [batch.pop(name, None) for name in dict.fromkeys(("past_key_values", self.report.cache))]
        given = next((state for state in named if state is not None), None)
        use = batch.pop("use_cache", None)
        if given is not None and not isinstance(given, Cache):
            kind = type(given).__name__
            raise InputError(f"past_key_values must be a cache returned by an earlier call of this model, not {kind}.")
        if given is None and use and "past_key_values" in self.names:  # an encoder has no cache
            return Cache()
        return given

    def _is_due(self, run: ForwardContext, name: str, stage: Stage) -> bool:
        """Whether a stage must run: its tokens are neither cached nor given, and it has an input."""
        given = run.batch.get("encoder_outputs") if name == "encoder" else None
        if run.state is not None and name in run.state.encoder_tokens:
            run.tokens[name] = run.state.encoder_tokens[name]
        elif given is not None:
            x = given if isinstance(given, Tensor) else given[0]
            run.tokens[name] = given_embeddings(run, x, "attention_mask")
        return name not in run.tokens and not stage.is_skipped(run)

    def _remember(self, run: ForwardContext, name: str, stage: Stage) -> None:
        """Cache an encoder's tokens for the next decoding step."""
        if run.state is not None and not stage.has_cache and name in run.tokens:
            run.state.encoder_tokens[name] = run.tokens[name].pad()

    def _asks_padding(self, run: ForwardContext) -> bool:
        """Whether padded positions must be computed, because labels ask for them."""
        for head in self.heads.values():
            name = self.stages[head.stage].inputs.mask_name
            mask = run.tensor(name) if name is not None else None
            if mask is not None and head.needs_padding(run, mask.to(torch.bool)):
                return True
        return False

    def _add_fields(self, out: Output, run: ForwardContext, hidden: bool, attentions: bool, seen: Any) -> None:
        for name, stage in self.report.last.items():
            out[name] = run.padded(stage)
        if hidden:
            for name, (stage, picks) in self.report.hidden.items():
                if stage in run.layers:
                    final, layers = run.tokens[stage], run.layers[stage]
                    put_field(out, name, tuple(zero_padding(final if pick < 0 else layers[pick]) for pick in picks))
        tapped = {**(self.report.features if hidden else {}), **(self.report.attentions if attentions else {})}
        for name, globs in tapped.items():
            values = tuple(value for glob in globs for value in seen(glob))
            if values or name in self.report.empty:
                put_field(out, name, values)

    @listing_keywords
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | Mapping[str, object] | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        stopping_criteria: Sequence[StoppingCriterion] | None = None,
        prefix_allowed_tokens_fn: Callable[[int, Tensor], Sequence[int]] | None = None,
        synced_gpus: bool | None = None,
        assistant_model: Model | None = None,
        streamer: Streamer | None = None,
        negative_prompt_ids: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Tensor | Output:
        """Generate token by token: greedy, beam search or sampling, with the options of transformers.

        inputs: the model's first input, [batch, tokens] of ids for text. The others go by name: attention_mask,
        input_ids or inputs_embeds, token_type_ids, position_ids, pixel_values, input_features, both_ways,
        encoder_outputs, decoder_input_ids, decoder_attention_mask, and past_key_values, an earlier call's cache.

        Length: max_new_tokens (20), max_length, min_new_tokens, min_length, max_time (seconds), eos_token_id,
        stop_strings with tokenizer, stopping_criteria: functions (ids, scores) -> whether each row is finished.
        Search: num_beams, num_beam_groups with diversity_penalty, length_penalty, early_stopping, num_return_sequences,
        assistant_model with num_assistant_tokens, prompt_lookup_num_tokens with max_matching_ngram_size.
        Sampling: do_sample with temperature, top_k (50), top_p, min_p, typical_p, top_h, epsilon_cutoff, eta_cutoff and
        seed: one number, or one per row.
        Scores: repetition_penalty, encoder_repetition_penalty, presence_penalty, frequency_penalty,
        no_repeat_ngram_size, encoder_no_repeat_ngram_size, bad_words_ids, sequence_bias, suppress_tokens,
        begin_suppress_tokens, forced_bos_token_id, forced_eos_token_id, exponential_decay_length_penalty,
        prefix_allowed_tokens_fn, guidance_scale with negative_prompt_ids and negative_prompt_attention_mask,
        remove_invalid_values, renormalize_logits, logits_processor: functions (ids, scores) -> scores.
        Ids: pad_token_id, bos_token_id, decoder_start_token_id.
        Speech: return_timestamps, return_segments, task, language, prompt_ids, prompt_condition_type,
        condition_on_prev_tokens, compression_ratio_threshold, logprob_threshold, no_speech_threshold,
        max_initial_timestamp_index, forced_decoder_ids, and the tables of a generation config: is_multilingual,
        lang_to_id, task_to_id, no_timestamps_token_id, prev_sot_token_id.
        generation_config holds any of these; those of the call win, and the folder's generation config comes last.
        use_cache, cache_implementation, logits_to_keep and synced_gpus=False are accepted and change nothing.

        Returns ids [rows, length], finished rows filled with pad_token_id, or an Output with `sequences` for
        return_dict_in_generate, output_scores, output_logits, output_attentions, output_hidden_states, logprobs and
        alignment. `streamer` receives every token.
        """
        from anyformer.generation.engine import generate

        named = {
            "inputs": inputs,
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
            "synced_gpus": synced_gpus,
            "assistant_model": assistant_model,
            "streamer": streamer,
            "negative_prompt_ids": negative_prompt_ids,
            "negative_prompt_attention_mask": negative_prompt_attention_mask,
        }
        with torch.inference_mode():
            made = generate(self, {**options, **{name: value for name, value in named.items() if value is not None}})
        return made.clone()  # a normal tensor, not an inference tensor, so that autograd can use it

    def score(
        self,
        *args: Tensor,
        continuations: Continuations,
        batch_size: int | None = None,
        decoder_start_token_id: int | None = None,
        **batch: Argument,
    ) -> ContinuationScores:
        """Log-probabilities of given continuations, token by token, and whether each is the greedy one. See
        `anyformer.generation.scoring`."""
        from anyformer.generation.scoring import score

        batch = {**({"input_ids": args[0]} if args else {}), **batch}
        options: dict[str, Any] = {"decoder_start_token_id": decoder_start_token_id, **batch}
        with torch.no_grad():
            return score(self, continuations, batch_size=batch_size, **options)

    def detect(
        self, *args: Tensor, threshold: float = 0.5, target_sizes: Sizes | None = None, **batch: Argument
    ) -> list[Output]:
        """Detections for each image: classes, scores and boxes, from parallel decoding of object queries
        (`generation.detection`)."""
        from anyformer.generation.detection import detect

        batch = {**({self.names[0]: args[0]} if args else {}), **batch}
        with torch.no_grad():
            return detect(self, threshold=threshold, target_sizes=target_sizes, **batch)

    def quantize(self, weights: str = "int8") -> Self:
        """Round the matrices of stacks and heads to int8, permanently: several times faster on a CPU.

        Embedding tables and norms are not changed. A quantized model can neither be trained nor saved.
        """
        if "quantize" not in rewrites.RULES:
            raise ConfigError("Quantization is part of anyformer.fast, which is not installed.")
        rewrites.apply("quantize", self, weights)
        self.requires_grad_(False)
        return self.eval()

    def optimize(self, rows: int = 1024) -> Self:
        """Make the model faster for inference, in place; results are equal up to rounding. `restore` undoes it.

        On a CPU, matrices are packed for products of about `rows` rows, which takes memory for a second copy. Batch
        norms are folded into their convolutions. If heads read only a class token, the last block computes no other
        tokens. On a GPU, PyTorch's `model.compile()` also fuses the operations between the products; its first call
        takes about a minute.
        """
        self.eval()
        self.auto_optimize = True
        rewrites.apply("optimize", self, rows)
        return self

    @property
    def is_quantized(self) -> bool:
        return any(isinstance(module, Linear) and module.quantized for module in self.modules())

    @property
    def packed_bytes(self) -> int:
        """Memory that packed copies of weights take on a CPU."""
        return int(rewrites.apply("packed_bytes", self) or 0)

    def restore(self) -> Self:
        """Undo `optimize`. Afterwards `generate` does not optimize the model either."""
        self.auto_optimize = False
        rewrites.apply("restore", self)
        return self

    def generate_many(
        self, prompts: Iterable[Prompt], rows: int = 32, **options: Unpack[GenerateKeywords]
    ) -> Iterator[tuple[int, Tensor]]:
        """Generate for each prompt; yield its number and ids when it is finished. A finished row takes the next prompt
        at once."""
        from anyformer.generation.continuous_batching import generate_many

        return generate_many(self, prompts, rows, **options)

    def train(self, mode: bool = True) -> Self:
        if mode and self.is_quantized:
            raise InputError('int8 weights cannot be trained; load the model without weights="int8".')
        return super().train(mode)

    def save(self, folder: str | PathLike[str], format: str = "anyformer") -> None:
        """Write a folder: in anyformer's format, or with format="hf" in one that transformers loads with equal
        results."""
        from anyformer.checkpoints.folder import save

        save(self, folder, format)
