"""The only maker of projections. Query, key and value stay addressable where they are stored as one matrix."""

from __future__ import annotations

import importlib.util
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core import products
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.products import Int8Weight, PackedWeight
from anyformer.errors import InputError

ALIGNED = 8  # half-precision numbers in the 16 bytes that the fast products of a GPU begin rows at
HALVES = (torch.float16, torch.bfloat16)
SMALL = 2**20  # numbers of a matrix below which one row alone is multiplied faster as it lies than packed
EPILOGUES = ("relu", "gelu_tanh")  # activations that products of a GPU can end with

GELUS = {"gelu": False, "gelu_tanh": True}  # whether it is the one by tanh
MOST_PARTS = 3  # of a product, whose gradients can be joined

HAS_TRITON = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


class Linear(nn.Module):
    """y = W x + b. `residual` marks a projection that writes into the residual stream, for its initialization."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True, residual: bool = False) -> None:
        super().__init__()
        self.d_in, self.d_out, self.residual = d_in, d_out, residual
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
        self._packed: PackedWeight | None = None  # beside the weights
        self._int8: Int8Weight | None = None  # instead of them

    def forward(
        self, x: Tensor, norm: nn.Module | None = None, activation: str | None = None, add: Tensor | None = None
    ) -> Tensor:
        """What stands around a product can go with it, act(W norm(x) + b) + add: at one row on a GPU as one kernel."""
        if x.is_cuda and x.numel() == x.shape[-1] and HAS_TRITON:
            from anyformer.core import gpu

            if gpu.can_multiply(x, self.weight, norm, activation):
                return gpu.vector_linear(x, self.weight, self.bias, norm, activation, add)
        x = x if norm is None else norm(x)
        y = self._linear_activation(x, activation) if activation is not None else None
        if y is None:
            y = self.product(x, self.bias)
            y = y if activation is None else ACTIVATIONS[activation](y)
        return y if add is None else add + y

    def _linear_activation(self, x: Tensor, activation: str | None) -> Tensor | None:
        """Product and activation together, where there are kernels for that."""
        if self.packed and activation in products.EPILOGUES and self._use_packed(x):
            return cast("PackedWeight", self._packed)(x, self.bias, activation)
        if self.bias is not None and activation in GELUS and self._is_compiled_training(x):
            from anyformer.core.gpu_training import linear_gelu

            return linear_gelu(x, self.weight, self.bias, GELUS[activation])
        if self.bias is None or activation not in EPILOGUES or not self._is_half(x):
            return None
        flat = x.reshape(-1, x.shape[-1])
        y = torch._addmm_activation(self.bias, flat, self.weight.T, use_gelu=activation == "gelu_tanh")
        return y.unflatten(0, x.shape[:-1])

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """W x + bias, for a head that keeps its bias elsewhere."""
        if self._int8 is not None:
            return self._int8(x, bias)
        if self._packed is not None and self._use_packed(x):
            if not self.packed:  # the weights have moved on
                self.pack(self._packed.rows)
            if self._packed is not None:
                return self._packed(x, bias)
        if self.weight.shape[0] % ALIGNED and self._is_half(x):
            return _aligned(x, self.weight, bias)
        return F.linear(x, self.weight, bias)

    def _is_compiled_training(self, x: Tensor) -> bool:
        if not HAS_TRITON or not torch.compiler.is_compiling() or self._int8 is not None:
            return False
        from anyformer.core.gpu_training import pays

        return pays(x)

    def _is_half(self, x: Tensor) -> bool:
        """Both sides in half precision on a GPU, without gradients; under autocast the weights are not."""
        return x.is_cuda and x.dtype in HALVES and self.weight.dtype == x.dtype and not torch.is_grad_enabled()

    def _use_packed(self, x: Tensor) -> bool:
        """A packed product has a fixed cost that a small matrix does not win back at one row."""
        if not x.is_cpu or x.dtype != torch.float32 or torch.is_grad_enabled():
            return False
        return x.numel() > x.shape[-1] or self.d_in * self.d_out > SMALL

    def pack(self, rows: int) -> None:
        """Keep a copy of the matrix laid out for oneDNN, for products with about so many rows without gradients."""
        self._packed = (
            PackedWeight(self.weight, rows) if self._int8 is None and PackedWeight.suits(self.weight) else None
        )

    def train(self, mode: bool = True) -> Self:
        if self._packed is not None:
            self._packed.expire()
        self._packed = None if mode else self._packed
        return super().train(mode)

    @property
    def packed(self) -> bool:
        return self._packed is not None and self._packed.holds(self.weight)

    def quantize(self) -> None:
        """From now on in 8 bits, without the weights themselves."""
        if self._int8 is None:
            self._int8, self._packed = Int8Weight(self.weight.detach()), None
            self.register_parameter("weight", None)

    @property
    def is_quantized(self) -> bool:
        return self._int8 is not None

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        self._refuse_int8()
        super()._save_to_state_dict(*args, **options)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self._refuse_int8()
        super()._load_from_state_dict(*args, **options)

    def _refuse_int8(self) -> None:
        if self._int8 is not None:
            raise InputError(
                "The matrices of this model are rounded to int8, and their weights are gone; for a state_dict load the"
                ' model without weights="int8".'
            )

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._packed = None  # another device or type
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}  # a copy of the module packs its own

    def extra_repr(self) -> str:
        kind = ", int8" if self._int8 is not None else ""
        return f"{self.d_in} -> {self.d_out}, bias={self.bias is not None}{kind}"


def _aligned(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in rows that begin at such bytes, odd words apart: with 50,257 words in a fraction of the time."""
    n, even = weight.shape[0], weight.shape[0] // ALIGNED * ALIGNED
    flat = x.reshape(-1, x.shape[-1])
    room = x.new_empty(len(flat), n + -n % (8 * ALIGNED))
    torch.mm(flat, weight[:even].T, out=room[:, :even])
    torch.mm(flat, weight[even:].T, out=room[:, even:n])
    y = room[:, :n] if bias is None else room[:, :n].add_(bias)
    return y.unflatten(0, x.shape[:-1])


class FusedLinear(Linear):
    """Several projections of one input stored as one matrix: one product instead of three.

    Fused(512, {"query": 512, "key": 64, "value": 64})(x) -> the three results
    """

    def __init__(self, d_in: int, roles: dict[str, int], bias: bool = True) -> None:
        super().__init__(d_in, sum(roles.values()), bias)
        self.roles = roles
        self._widths = list(roles.values())

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> tuple[Tensor, ...]:  # type: ignore[override]
        if self.bias is not None and len(self._widths) <= MOST_PARTS and self._is_compiled_training(x):
            from anyformer.core.gpu_training import linear_parts

            return linear_parts(x if norm is None else norm(x), self.weight, self.bias, self._widths)
        return super().forward(x, norm).split_with_sizes(self._widths, dim=-1)

    def slice(self, role: str) -> slice:
        """The rows of the matrix that belong to a role."""
        start = 0
        for name, width in self.roles.items():
            if name == role:
                return slice(start, start + width)
            start += width
        raise KeyError(role)

    def project_one(self, role: str, x: Tensor) -> Tensor:
        """One role alone, for inputs that differ (DETR adds positions to queries and keys, not to values)."""
        rows = self.slice(role)
        if self._int8 is not None:
            return self.product(x, self.bias)[..., rows]
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


def quantize_weights(model: nn.Module) -> None:
    """Every matrix below `model` in 8 bits."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.quantize()


def is_quantized(model: nn.Module) -> bool:
    return any(isinstance(module, Linear) and module.is_quantized for module in model.modules())


def pack_weights(model: nn.Module, rows: int) -> None:
    """Make the products of a model that only runs, on a CPU in float32, faster (twice, at one row), for twice the
    memory."""
    for module in model.modules():
        if isinstance(module, Linear) and not module.packed:
            module.pack(rows)
