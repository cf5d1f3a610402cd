"""Copies of weights that are made for speed (packed matrices, folded norms) never answer with old numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.core.linear import Linear
from anyformer.layers.resnet import ConvNormAct
from tests.batches import ids
from tests.tiny import tiny_recipes

IDS = ids()[0][None]
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _text() -> af.Model:
    """Its matrices are packed by generate."""
    torch.manual_seed(0)
    model = af.build("gpt2-tiny", n_layers=1).eval()
    model.generate(IDS, max_new_tokens=2)
    assert all(part.packed for part in model.modules() if isinstance(part, Linear))
    return model


def _pictures() -> af.Model:
    torch.manual_seed(0)
    model = af.build("resnet-tiny").eval().optimize()
    assert all(part._folded is not None for part in model.modules() if isinstance(part, ConvNormAct))
    return model


def _answers(model: af.Model) -> Tensor:
    with torch.no_grad():
        return model(IDS if model.family == "gpt2" else PIXELS).logits


def _expected(model: af.Model) -> Tensor:
    """What a copy gives, which has the weights and nothing that was made of them."""
    other = copy.deepcopy(model)
    assert not any(part.packed for part in other.modules() if isinstance(part, Linear))
    return _answers(other)


def _tensors(model: af.Model) -> Iterable[Tensor]:
    return [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]


def _in_place(model: af.Model) -> None:
    with torch.no_grad():
        for x in _tensors(model):
            x.mul_(1.5)


def _loaded(model: af.Model) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def _assigned(model: af.Model) -> None:
    """New parameters, whose versions may be those of the old ones."""
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}, assign=True)


def _data(model: af.Model) -> None:
    for x in _tensors(model):
        x.data.mul_(1.5)


def _other_data(model: af.Model) -> None:
    for x in _tensors(model):
        x.data = x.data * 1.5


def _average(model: af.Model) -> None:
    """As moving averages are often written."""
    for x in _tensors(model):
        x.data = x.data.lerp(torch.zeros_like(x), 0.2)


def _vector(model: af.Model) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector.detach() * 1.5, model.parameters())


def _numpy(model: af.Model) -> None:
    for x in _tensors(model):
        x.detach().numpy()[:] *= 1.5


def _stepped(**options: Any) -> Callable[[af.Model], None]:
    def write(model: af.Model) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad.view(-1)[-1] = 1.0  # of one number alone: no sample of a few would show it
        optimizer.step()

    return write


WRITES: dict[str, Callable[[af.Model], None]] = {
    "in place": _in_place,
    "load_state_dict": _loaded,
    "assigned": _assigned,
    ".data": _data,
    ".data =": _other_data,
    "average": _average,
    "vector": _vector,
    "numpy": _numpy,
    "optimizer": _stepped(weight_decay=0.0),
    "foreach": _stepped(weight_decay=0.0, foreach=True),
    "fused": _stepped(weight_decay=0.0, fused=True),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", [_text, _pictures])
def test_whatever_is_written_is_seen(make: Callable[[], af.Model], write: str) -> None:
    """Each time, and not only the first time."""
    model = make()
    for _ in range(2):
        before = _answers(model)
        WRITES[write](model)
        after, expected = _answers(model), _expected(model)
        assert not torch.equal(expected, before)
        torch.testing.assert_close(after, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("write", [".data", ".data =", "fused"])
def test_generate_sees_what_is_written(write: str) -> None:
    model = _text()
    WRITES[write](model)
    written = model.generate(IDS, max_new_tokens=8)
    assert torch.equal(written, copy.deepcopy(model).generate(IDS, max_new_tokens=8))
    scores = model.score(IDS, continuations=[[5, 6], [7]]).totals
    torch.testing.assert_close(scores, copy.deepcopy(model).score(IDS, continuations=[[5, 6], [7]]).totals)


def test_steps_of_a_loop_of_ones_own_see_what_is_written() -> None:
    """With a cache that has begun; its keys stay those of the old weights, in the copy of the model too."""
    model = _text()
    answers = []
    for other in (model, copy.deepcopy(model)):
        with torch.no_grad():
            past = other(IDS, use_cache=True).past_key_values
            _data(other)
            answers.append(other(IDS[:, :3], past_key_values=past).logits)
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("switch", ["eval", "train and eval"])
@pytest.mark.parametrize("make", [_text, _pictures])
def test_switching_the_mode_forgets_everything(make: Callable[[], af.Model], switch: str) -> None:
    """So that one number, written where no sample is taken, is seen too."""
    model = make()
    before = _answers(model)
    for part in model.modules():
        if isinstance(part, (Linear, nn.Conv2d)):
            part.weight.data.view(-1)[-2] += 3.0
    if switch != "eval":
        model.train()
    model.eval()
    after, expected = _answers(model), _expected(model)
    assert not torch.equal(expected, before)
    torch.testing.assert_close(after, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_copies_stay_where_nothing_was_written() -> None:
    """They are made once; after a write they are made again, and not lost."""
    model = af.build("gpt2-tiny", n_layers=1).eval().optimize()
    parts = [part for part in model.modules() if isinstance(part, Linear)]
    made = [part._packed for part in parts]
    for _ in range(3):
        _answers(model)
    assert all(part._packed is one for part, one in zip(parts, made, strict=True))
    assert all(one is not None for one in made)
    _data(model)
    _answers(model)
    assert all(part.packed and part._packed is not one for part, one in zip(parts, made, strict=True))
    assert all(part.packed for part in model.eval().optimize().modules() if isinstance(part, Linear))


def test_nan_is_no_change() -> None:
    model = _text()
    next(part for part in model.modules() if isinstance(part, Linear)).weight.data[:] = float("nan")
    _answers(model)
    made = [part._packed for part in model.modules() if isinstance(part, Linear)]
    _answers(model)
    assert made == [part._packed for part in model.modules() if isinstance(part, Linear)]


def test_two_models_with_one_weight() -> None:
    """Tied by hand: whoever writes, both see it."""
    one, two = _text(), _text()
    for a, b in zip(one.modules(), two.modules(), strict=True):
        if isinstance(a, Linear) and isinstance(b, Linear):
            b.weight = a.weight
    _answers(two)
    _data(one)
    torch.testing.assert_close(_answers(two), _expected(two))
    torch.testing.assert_close(_answers(one), _expected(one))


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="PyTorch without FBGEMM")
def test_int8_has_no_weights_to_give() -> None:
    model = af.build("gpt2-tiny", n_layers=1).eval()
    weights = model.state_dict()
    model.quantize()
    with pytest.raises(af.Error, match=r'rounded to int8.*without weights="int8"'):
        model.state_dict()
    for strict in (True, False):
        with pytest.raises(af.Error, match="rounded to int8"):
            model.load_state_dict(weights, strict=strict)


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_model_can_be_pickled(name: str) -> None:
    """Its settings, weights and mode; and it runs: every part that it is made of came along."""
    torch.manual_seed(0)
    model = af.build(name).eval().optimize()
    again = pickle.loads(pickle.dumps(model))
    assert again.config == model.config and again.points == model.points and not again.training
    theirs = dict(model.state_dict())
    assert list(again.state_dict()) == list(theirs)
    assert all(torch.equal(value, theirs[key]) for key, value in again.state_dict().items())
