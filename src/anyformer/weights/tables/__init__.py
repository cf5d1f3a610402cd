"""One key table a family: how Hugging Face spells its settings and its tensors."""

from anyformer.weights.table import Table
from anyformer.weights.tables import (
    bert,
    detr,
    distilbert,
    electra,
    gpt2,
    mae,
    marian,
    mpnet,
    perceiver,
    roberta,
    roformer,
    vit,
)

_MODULES = (bert, detr, distilbert, electra, gpt2, mae, marian, mpnet, perceiver, roberta, roformer, vit)

TABLES: dict[str, Table] = {module.TABLE.model_type: module.TABLE for module in _MODULES}
