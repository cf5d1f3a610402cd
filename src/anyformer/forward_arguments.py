"""The arguments of a model's `forward`: what each means, their order by position, and the signature made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from torch import Tensor

from anyformer.core.cache import Cache

# What the arguments of a model are; its signature says more.
Argument = (
    Tensor | Cache | Sequence[Tensor] | Sequence[Mapping[str, Tensor]] | Sequence[tuple[int, int]] | bool | int | None
)

ARGUMENTS = {
    "input_ids": "token ids [batch, tokens]",
    "inputs": "another name of the main input",
    "pixel_values": "images [batch, channels, height, width], clips [batch, frames, channels, height, width]",
    "pixel_mask": "[batch, height, width], 1 at the pixels of an image that is smaller than the batch's canvas",
    "input_values": "spectrograms [batch, frames, bins]",
    "input_features": "spectrograms [batch, bins, frames]",
    "items": "vectors of a set [batch, items, features]",
    "numbers": "the numeric columns of a table [batch, columns]",
    "categories": "the categorical columns of a table as ids [batch, columns]",
    "attention_mask": "1 at real tokens and 0 at padding [batch, tokens]; for text also [batch, 1, tokens, tokens],"
    " True or 0.0 where a query may attend to a key",
    "token_type_ids": "which text of a pair each token belongs to [batch, tokens]",
    "position_ids": "positions of the tokens [batch, tokens]; without them, they count the real tokens",
    "inputs_embeds": "vectors instead of token ids [batch, tokens, width]",
    "past_key_values": "a cache that an earlier call returned",
    "cache_params": "a cache that an earlier call returned",
    "encoder_hidden_states": "vectors that cross-attention reads [batch, tokens, width]",
    "encoder_attention_mask": "1 at the real ones among encoder_hidden_states [batch, tokens]",
    "encoder_outputs": "the encoder's output, so that it does not run again",
    "decoder_input_ids": "token ids of the target [batch, tokens]; with labels, they are made of those",
    "decoder_attention_mask": "1 at real tokens of the target and 0 at padding [batch, tokens]",
    "decoder_inputs_embeds": "vectors instead of decoder_input_ids [batch, tokens, width]",
    "decoder_token_type_ids": "as token_type_ids, of the target",
    "decoder_position_ids": "as position_ids, of the target",
    "labels": "targets of the loss; -100 is ignored",
    "next_sentence_label": "whether the second text of a pair follows the first: 0, or 1 if it does not [batch]",
    "start_positions": "the first token of each answer [batch]",
    "end_positions": "the last token of each answer [batch]",
    "return_loss": "whether to return the contrastive loss of the batch",
    "num_items_in_batch": "what the sum of the losses is divided by; None: the number of labels",
    "noise": "random numbers that decide what is masked or sampled",
    "gaps": "which tokens are replaced [batch, tokens]",
    "replaced": "1 at the tokens that were replaced [batch, tokens]; found from the labels",
    "places": "points of earlier keypoints, for decoding them one by one",
    "bool_masked_pos": "which patches are masked [batch, patches]",
    "both_ways": "which tokens attend in both directions [batch, tokens]",
    "flip_pairs": "the keypoints that change places in a mirrored image",
    "interpolate_pos_encoding": "whether images of another size are taken, by interpolating the position embeddings",
    "logits_to_keep": "compute the logits of only so many last tokens, or of these positions; 0: of all",
    "output_hidden_states": "whether to return the hidden states of every layer",
    "output_attentions": "whether to return the attention weights of every layer",
    "return_dict": "False: a tuple instead of an Output",
    "use_cache": "whether to return a cache for the next tokens",
}
TYPES: dict[str, Any] = {  # of the arguments that are neither tensors nor flags
    "past_key_values": Cache,
    "cache_params": Cache,
    "encoder_outputs": Tensor | Sequence[Tensor],
    "labels": Tensor | Sequence[Mapping[str, Tensor]],
    "return_loss": bool,
    "num_items_in_batch": Tensor | int,
    "logits_to_keep": Tensor | int,
}
LOSS_INPUTS = frozenset("labels next_sentence_label start_positions end_positions return_loss".split())
FLAGS = ("interpolate_pos_encoding", "output_hidden_states", "output_attentions", "return_dict", "use_cache")

TEXT = (
    "input_ids pixel_values attention_mask token_type_ids position_ids inputs_embeds"
    " labels next_sentence_label start_positions end_positions output_attentions output_hidden_states return_dict"
)
CROSSING = (  # encoders that may be decoders
    "input_ids attention_mask token_type_ids position_ids inputs_embeds"
    " encoder_hidden_states! encoder_attention_mask past_key_values labels use_cache"
)
DECODER = "input_ids attention_mask position_ids past_key_values inputs_embeds labels use_cache logits_to_keep"
GPT2 = (
    "input_ids past_key_values attention_mask token_type_ids position_ids inputs_embeds"
    " encoder_hidden_states! encoder_attention_mask labels use_cache logits_to_keep"
)
ENCODER_DECODER = (
    "input_ids input_features attention_mask decoder_input_ids decoder_attention_mask encoder_outputs"
    " past_key_values inputs_embeds decoder_inputs_embeds decoder_position_ids labels use_cache"
)
IMAGE = "pixel_values pixel_mask noise labels interpolate_pos_encoding attention_mask"
MASKED_IMAGE = "pixel_values bool_masked_pos! labels interpolate_pos_encoding attention_mask"
ANY = f"input_values items numbers categories {IMAGE}"

# The order by position of transformers' classes, by family, or by family and head where its classes differ. At a name
# with "!" it ends if the model has no such argument: what follows is given by name.
ORDERS = {
    **dict.fromkeys(("bert/base", "bert/masked", "roberta/base", "roberta/masked", "electra/base"), CROSSING),
    **dict.fromkeys(("roformer/base", "roformer/masked"), CROSSING),
    "roberta/choice": "input_ids token_type_ids attention_mask labels position_ids inputs_embeds",
    "distilbert": "input_ids attention_mask inputs_embeds labels start_positions end_positions position_ids",
    "gpt1": "input_ids attention_mask token_type_ids position_ids inputs_embeds labels",
    **dict.fromkeys(("gpt2", "gpt3", "imagegpt"), GPT2),
    "imagegpt/classify": GPT2.replace(" encoder_hidden_states! encoder_attention_mask", ""),
    "gptneox": "input_ids attention_mask position_ids inputs_embeds past_key_values labels use_cache logits_to_keep",
    "mamba": "input_ids attention_mask inputs_embeds cache_params labels output_hidden_states return_dict use_cache",
    "trocr": (
        "input_ids attention_mask encoder_hidden_states encoder_attention_mask past_key_values inputs_embeds labels"
    ),
    "git": "input_ids attention_mask position_ids pixel_values inputs_embeds labels past_key_values use_cache",
    "clip": "input_ids pixel_values attention_mask position_ids return_loss interpolate_pos_encoding",
    "encoder-decoder": ENCODER_DECODER.replace("decoder_position_ids ", ""),
    "vision-encoder-decoder": (
        "pixel_values decoder_input_ids decoder_attention_mask encoder_outputs past_key_values decoder_inputs_embeds"
        " labels use_cache"
    ),
    "whisper": ENCODER_DECODER,
    **dict.fromkeys(("bart/classify", "t5/classify"), ENCODER_DECODER.replace("past_key_values ", "")),
    "gpt2/classify": GPT2.replace(" encoder_hidden_states! encoder_attention_mask", ""),
    "gpt1/base": "input_ids attention_mask token_type_ids position_ids inputs_embeds output_attentions",
    "mamba/base": "input_ids inputs_embeds cache_params use_cache output_hidden_states return_dict attention_mask",
    "modernbert": "input_ids attention_mask position_ids! inputs_embeds labels",
    "dinov2": "pixel_values labels attention_mask",
    "dinov2/base": "pixel_values bool_masked_pos! attention_mask",
    "whisper/classify": "input_features encoder_outputs! labels",
    "detr": "pixel_values pixel_mask decoder_attention_mask encoder_outputs! inputs_embeds",
    **dict.fromkeys(("vit/base", "deit/base", "beit/base", "videomae/base", "videomae/pixels"), MASKED_IMAGE),
    "beit/words": MASKED_IMAGE,
    "deit/distill": "pixel_values interpolate_pos_encoding attention_mask",
    "timesformer": "pixel_values labels output_attentions output_hidden_states return_dict",
    "resnet": "pixel_values labels output_hidden_states return_dict",
    "vitpose": "pixel_values dataset_index! flip_pairs labels",
    "perceiver": "inputs attention_mask output_attentions output_hidden_states labels interpolate_pos_encoding",
}


def positional(family: str, head: object, names: Collection[str]) -> tuple[str, ...]:
    """The arguments that may be given by position, in order."""
    order = ORDERS.get(f"{family}/{head}", ORDERS.get(family, ""))
    if not order and {"input_ids", "decoder_input_ids"} <= set(names):
        order = ENCODER_DECODER
    elif not order and "input_ids" in names:
        order = DECODER if "past_key_values" in names else TEXT
    found = []
    for name in (order or ANY).split():
        if name.rstrip("!") in names:
            found.append(name.rstrip("!"))
        elif name.endswith("!"):
            break
    return tuple(found)


def signature(positional: Sequence[str], names: Sequence[str]) -> Signature:
    """The signature of a method that takes some names by position too, and the others by name alone."""
    made = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    by_name = [name for name in names if name not in positional]
    for kind, some in ((Parameter.POSITIONAL_OR_KEYWORD, positional), (Parameter.KEYWORD_ONLY, by_name)):
        made += [Parameter(name, kind, default=None, annotation=_annotation(name)) for name in some]
    return Signature(made)


def _annotation(name: str) -> Any:
    if name in FLAGS:
        return bool | None
    return TYPES.get(name, Tensor) | None


def docstring(family: str, names: Iterable[str]) -> str:
    """What `help` shows of a model's forward."""
    lines = [f"    {name}: {ARGUMENTS.get(name, 'see the docstring of the family')}" for name in names]
    return "\n".join([f"The output of this {family} model, by the names of the Hugging Face libraries.", "", *lines])


SIGNED: dict[Any, type] = {}  # classes by what their forward takes


def with_signature(cls: type, family: str, by_position: tuple[str, ...], names: tuple[str, ...]) -> type:
    """The class with a `forward` whose signature and docstring tell what one model takes."""
    key = (cls, family, by_position, names)
    if key not in SIGNED:
        plain: Any = cls.forward  # type: ignore[attr-defined]
        forward: Any = FunctionType(plain.__code__, plain.__globals__, "forward", closure=plain.__closure__)
        forward.__qualname__, forward.__doc__ = (
            plain.__qualname__,
            docstring(family, dict.fromkeys((*by_position, *names))),
        )
        forward.__signature__ = signature(by_position, names)
        made = {"forward": forward, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        SIGNED[key] = type(cls.__name__, (cls,), {**made, "__doc__": cls.__doc__})
    return SIGNED[key]


def unfilled(cls: type, *key: Any) -> Any:
    """A model for `copy` and `pickle` to fill."""
    made: Any = with_signature(cls, *key)
    return made.__new__(made)
