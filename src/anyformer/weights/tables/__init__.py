"""One key table a family: how Hugging Face spells its settings and its tensors."""

from anyformer.weights.table import Table
from anyformer.weights.tables import (
    bert,
    detr,
    gemma3,
    gpt1,
    gpt2,
    gptneox,
    llama,
    mae,
    mamba,
    marian,
    mistral,
    perceiver,
    qwen,
    vit,
)

_ALL = (
    *(module.TABLE for module in (bert, detr, gpt1, gpt2, mae, mamba, marian, perceiver, vit)),
    *(module.TABLE for module in (gemma3, gptneox, llama, mistral)),
    *(qwen.QWEN2, qwen.QWEN3),
)

TABLES: dict[str, Table] = {table.model_type: table for table in _ALL}
