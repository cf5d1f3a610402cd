"""Matrix products on a CPU with constant weights, in oneDNN's layout or in int8."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.fast.weight_copies import Copy

# Activations that a packed product can apply to its result: oneDNN's name, and its variant of the activation.
EPILOGUES = {None: ("none", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


class PackedWeight(Copy):
    """A copy of a float32 matrix in oneDNN's layout for about `rows` rows; the numbers are the same."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        super().__init__(weight)
        self.layout: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        self.rows = rows

    def holds(self, *weights: Tensor) -> bool:
        """As `Copy.holds`, without a loop, since it runs before each product."""
        (weight,) = weights
        return weight is self.weights[0] and weight._version == self.versions[0]

    @staticmethod
    def suits(weight: Tensor) -> bool:
        plain = weight.is_cpu and weight.dtype == torch.float32 and not weight.is_inference()
        return plain and torch.backends.mkldnn.is_available()

    def __call__(self, x: Tensor, bias: Tensor | None, activation: str | None = None) -> Tensor:
        name, way = EPILOGUES[activation]
        result: Tensor = _operator("mkldnn", "_linear_pointwise")(x, self.layout, bias, name, [], way)
        return result


class Int8Weight:
    """A matrix as integers from -127 to 127 with one scale per row; inputs are quantized in the same way, with one
    scale per token.

    The error of a weight is at most half a step, 1/254 of the largest absolute weight in its row; the error of a
    feature is at most 1/254 of the largest in its token. Scales per token make results independent of the other rows of
    the batch.
    """

    TINY = 1e-30  # so that the scale of a token of zeros is not 0

    def __init__(self, weight: Tensor) -> None:
        check_int8()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=self.TINY).double()
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():  # PyTorch warns of a successor that does not have this kernel yet
            warnings.simplefilter("ignore")
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self.matrix = torch.ops.quantized.linear_prepack(whole, None)
        # Without VNNI, sums of two products are kept in 16 bits, which full 8-bit inputs would overflow.
        self.levels = 127 if torch.cpu._is_vnni_supported() else 63

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if x.dtype != torch.float32 or not x.is_cpu:
            kind = str(x.dtype).removeprefix("torch.")
            raise InputError(f"int8 weights multiply float32 on a CPU; this is {kind} on {x.device.type}.")
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "No gradient goes through int8 weights; load the model without them to train or explain it."
            )
        if x.numel() == x.shape[-1]:  # one token has one scale
            result = self._multiply(x, max(float(x.abs().amax()), self.TINY) / self.levels)
            return result if bias is None else result.add_(bias)
        largest = x.abs().amax(dim=-1, keepdim=True).clamp_(min=self.TINY)
        result = self._multiply(x / largest, 1 / self.levels)
        return result.mul_(largest) if bias is None else torch.addcmul(bias, result, largest, out=result)

    def _multiply(self, x: Tensor, step: float) -> Tensor:
        """Multiply with x rounded to whole steps, which are stored as unsigned integers from `levels` + 1."""
        with _plain():
            product = _operator("quantized", "linear_with_input_q_dq_qweight_dq_output_fp32")
            result: Tensor = product(x, step, self.levels + 1, self.matrix)
        return result


@cache
def _operator(package: str, name: str) -> Any:
    """One of PyTorch's operators. It is looked up once, since that costs as much as a small product, and not before it
    is needed, since some builds do not have it."""
    return getattr(getattr(torch.ops, package), name).default._op


# Without it, every call looks up a missing method of the packed matrix, and the exception costs more than the product.
_plain = torch._C.DisableTorchFunctionSubclass


def check_int8() -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise InputError("int8 weights need a PyTorch with FBGEMM (x86-64); load the model without them.")
