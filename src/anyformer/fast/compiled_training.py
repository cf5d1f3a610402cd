"""Modules whose gradients are computed by our own kernels in compiled training steps on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from anyformer.core.attention import Attention
from anyformer.core.feedforward import FeedForward
from anyformer.core.linear import FusedLinear, Linear
from anyformer.fast.device import MOST_PARTS, is_hooked
from anyformer.fast.gpu_linear import GPUFeedForward
from anyformer.fast.swap import plain_class

GELUS = {"gelu": False, "gelu_tanh": True}  # name -> whether it is the tanh approximation


class CompiledAttention(Attention):
    """Attention that joins the gradients of query, key and value with one kernel."""

    def project_fused(self, linear: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        from anyformer.fast.triton_training import linear_parts, pays

        if not isinstance(linear, FusedLinear) or plain_class(linear) is not FusedLinear or not pays(x):
            return super().project_fused(linear, x)
        if linear.bias is None or len(linear.widths) > MOST_PARTS:
            return super().project_fused(linear, x)
        return linear_parts(x, linear.weight, linear.bias, linear.widths)


class CompiledFeedForward(GPUFeedForward):
    """Feed-forward network that computes the gradients of GELU and of the bias before it with one kernel."""

    def hidden(self, x: Tensor) -> Tensor:
        from anyformer.fast.triton_training import linear_gelu, linear_parts, pays

        if not pays(x):
            return super().hidden(x)
        if self.config.gated:
            plain = plain_class(self.gate_up) is FusedLinear and self.gate_up.bias is not None
            if not plain:
                return super().hidden(x)
            gate, up = linear_parts(x, self.gate_up.weight, self.gate_up.bias, self.gate_up.widths)
            return self.activation(gate) * up
        if plain_class(self.up) is not Linear or self.up.bias is None or self.config.activation not in GELUS:
            return super().hidden(x)
        return linear_gelu(x, self.up.weight, self.up.bias, GELUS[self.config.activation])


def compiled_parts(model: nn.Module) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    """Pairs for `swapped`: attentions and feed-forward networks without hooks."""
    for module in list(model.modules()):
        hooked = any(is_hooked(child) for child in module.children())
        if type(module) is Attention and not hooked:
            yield module, CompiledAttention
        elif type(module) in (FeedForward, GPUFeedForward) and not hooked:
            yield module, CompiledFeedForward
