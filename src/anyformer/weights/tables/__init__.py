"""One key table a family: how Hugging Face spells its settings and its tensors."""

from anyformer.weights.table import Table
from anyformer.weights.tables import bert, detr, gpt2, mae, mamba, marian, perceiver, vit

TABLES: dict[str, Table] = {
    module.TABLE.model_type: module.TABLE for module in (bert, detr, gpt2, mae, mamba, marian, perceiver, vit)
}
