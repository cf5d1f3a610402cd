"""One key table a family: how Hugging Face spells its settings and its tensors."""

from anyformer.weights.table import Table
from anyformer.weights.tables import (
    bart,
    bert,
    detr,
    distilbert,
    electra,
    encoder_decoder,
    gpt2,
    mae,
    marian,
    mpnet,
    perceiver,
    roberta,
    roformer,
    t5,
    vit,
)

_MODULES = (
    bart,
    bert,
    detr,
    distilbert,
    electra,
    encoder_decoder,
    gpt2,
    mae,
    marian,
    mpnet,
    perceiver,
    roberta,
    roformer,
    t5,
    vit,
)

TABLES: dict[str, Table] = {module.TABLE.model_type: module.TABLE for module in _MODULES}
