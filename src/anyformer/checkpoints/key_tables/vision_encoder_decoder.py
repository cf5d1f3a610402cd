"""An image encoder with a text decoder: the table of any encoder-decoder, under another class's name."""

from __future__ import annotations

from dataclasses import replace

from anyformer.checkpoints.key_tables import encoder_decoder

TABLE = replace(
    encoder_decoder.TABLE,
    family="vision-encoder-decoder",
    model_type="vision-encoder-decoder",
    architectures={"VisionEncoderDecoderModel": {}},
)
