"""Matrix products for inference on a GPU: of one row, in half precision with odd row lengths, and with a fused
activation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.core.feedforward import FeedForward
from anyformer.core.linear import FusedLinear, Linear
from anyformer.fast.device import HALVES, HAS_TRITON, is_hooked

ALIGNED = 8  # half-precision numbers in 16 bytes, the row alignment of the fast GPU products
EPILOGUES = ("relu", "gelu_tanh")  # activations that GPU products can apply to their result


class GPULinear(Linear):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        bias = self.bias if bias is None else bias
        if takes_row(x, self.weight):
            from anyformer.fast.triton_decode import vector_linear

            return vector_linear(x, self.weight, bias)
        if self.weight.shape[0] % ALIGNED and is_half(x, self.weight):
            return aligned_linear(x, self.weight, bias)
        return super().forward(x, bias)


class GPUFusedLinear(FusedLinear, GPULinear):
    def forward(self, x: Tensor, role: str | None = None) -> Tensor:  # type: ignore[override]
        return GPULinear.forward(self, x) if role is None else FusedLinear.forward(self, x, role)


class GPUFeedForward(FeedForward):
    """Feed-forward network whose activation is fused with the first product."""

    def hidden(self, x: Tensor) -> Tensor:
        activation = self.config.activation
        if self.config.gated or type(self.up) is not GPULinear or is_hooked(self.up):
            return super().hidden(x)
        if takes_row(x, self.up.weight, None, activation):
            from anyformer.fast.triton_decode import vector_linear

            return vector_linear(x, self.up.weight, self.up.bias, None, activation)
        if self.up.bias is None or activation not in EPILOGUES or not is_half(x, self.up.weight):
            return super().hidden(x)
        flat, gelu = x.reshape(-1, x.shape[-1]), activation == "gelu_tanh"
        y = torch._addmm_activation(self.up.bias, flat, self.up.weight.T, use_gelu=gelu)
        return y.unflatten(0, x.shape[:-1])


def is_half(x: Tensor, weight: Tensor) -> bool:
    """Whether both are in half precision on a GPU and without gradients. Under autocast the weights are not."""
    return x.is_cuda and x.dtype in HALVES and weight.dtype == x.dtype and not torch.is_grad_enabled()


def takes_row(x: Tensor, weight: Tensor, norm: nn.Module | None = None, activation: str | None = None) -> bool:
    """Whether the kernel for one row supports this product."""
    if not (HAS_TRITON and x.is_cuda and x.numel() == x.shape[-1]):
        return False
    from anyformer.fast.triton_decode import can_multiply

    return can_multiply(x, weight, norm, activation)


def aligned_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product with rows aligned to 16 bytes, and unaligned outputs computed separately: several times faster with
    50,257 tokens."""
    n, even = weight.shape[0], weight.shape[0] // ALIGNED * ALIGNED
    flat = x.reshape(-1, x.shape[-1])
    room = x.new_empty(len(flat), n + -n % (8 * ALIGNED))
    torch.mm(flat, weight[:even].T, out=room[:, :even])
    torch.mm(flat, weight[even:].T, out=room[:, even:n])
    y = room[:, :n] if bias is None else room[:, :n].add_(bias)
    return y.unflatten(0, x.shape[:-1])
