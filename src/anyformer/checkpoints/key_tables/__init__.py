"""One key table a family: how Hugging Face spells its settings and its tensors."""

from anyformer.checkpoints.key_table import KeyTable
from anyformer.checkpoints.key_tables import (
    ast,
    bart,
    beit,
    bert,
    clip,
    deit,
    detr,
    dinov2,
    distilbert,
    electra,
    encoder_decoder,
    gemma3,
    git,
    gpt1,
    gpt2,
    gptneox,
    imagegpt,
    llama,
    mae,
    mamba,
    marian,
    mistral,
    modernbert,
    mpnet,
    perceiver,
    qwen,
    resnet,
    roberta,
    roformer,
    t5,
    timesformer,
    trocr,
    videomae,
    vision_encoder_decoder,
    vit,
    vitpose,
    whisper,
)

_TEXT_ENCODERS = (bert, distilbert, electra, modernbert, mpnet, roberta, roformer)
_DECODERS = (gemma3, gpt1, gpt2, gptneox, imagegpt, llama, mamba, mistral, trocr)
_PAIRS = (bart, encoder_decoder, marian, t5, vision_encoder_decoder)
_SOUNDS = (ast, whisper)
_VIDEOS = (timesformer, videomae)
_OTHERS = (beit, deit, detr, dinov2, git, mae, perceiver, resnet, vit, vitpose)
_ALL = (
    *(module.TABLE for module in (*_TEXT_ENCODERS, *_DECODERS, *_PAIRS, *_SOUNDS, *_VIDEOS, *_OTHERS)),
    *(clip.TABLE, clip.TEXT, clip.VISION),
    *(qwen.QWEN2, qwen.QWEN3, gemma3.GEMMA, gemma3.GEMMA2),
)

TABLES: dict[str, KeyTable] = {table.model_type: table for table in _ALL}
