"""nanoGPT's model and optimizer settings, restated layer by layer for timing (its own file is not at hand here).

As there: pre-norm blocks, one matrix for query, key and value, F.scaled_dot_product_attention, exact GELU, biases as
GPT-2 has them or none, the output tied to the word table, AdamW with decay on matrices only, fused on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    n_layers: int
    d_model: int
    n_heads: int
    context: int
    vocabulary: int
    dropout: float = 0.0
    bias: bool = True


class Norm(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.attend = nn.Linear(s.d_model, 3 * s.d_model, bias=s.bias)
        self.out = nn.Linear(s.d_model, s.d_model, bias=s.bias)
        self.dropout, self.s = nn.Dropout(s.dropout), s

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, self.s.n_heads, c // self.s.n_heads).transpose(1, 2)
            for part in self.attend(x).split(c, dim=2)
        )
        p = self.s.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).contiguous().view(b, t, c)))


class Block(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(s.d_model, s.bias), Norm(s.d_model, s.bias)
        self.attention = Attention(s)
        self.up = nn.Linear(s.d_model, 4 * s.d_model, bias=s.bias)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * s.d_model, s.d_model, bias=s.bias)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))


class NanoGPT(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(s.vocabulary, s.d_model)
        self.places = nn.Embedding(s.context, s.d_model)
        self.dropout = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.n_layers))
        self.norm = Norm(s.d_model, s.bias)
        self.head = nn.Linear(s.d_model, s.vocabulary, bias=False)
        self.words.weight = self.head.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        at = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        x = self.dropout(self.words(ids) + self.places(at))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def optimizer(self, lr: float, fused: bool) -> torch.optim.Optimizer:
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), **({"fused": True} if fused else {}))
