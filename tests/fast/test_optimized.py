"""An optimized model is the same model: its tensors, files, taps, hooks and classes of layers are those that it had."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.fast.swap import plain_class
from tests.batches import ids
from tests.checkpoints.compare import flat
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

WRITERS = ("gpt2-tiny", "llama-tiny", "transformer-tiny", "t5-tiny")
KINDS = (*WRITERS, "bert-tiny", "vit-tiny", "resnet-tiny", "detr-tiny", "perceiver-tiny")  # what is optimized in each
IDS = torch.stack([row[:4] for row in ids()])


def built(name: str, **settings: Any) -> af.Model:
    """In eval mode, with statistics of batch norms that matter."""
    torch.manual_seed(0)
    model = af.build(name, **settings).eval()
    with torch.no_grad():
        for path, buffer in model.named_buffers():
            if buffer.is_floating_point() and "running" in path:
                buffer.add_(torch.rand_like(buffer))
    return model


def batch_of(name: str) -> dict[str, Any]:
    return {key: value for key, value in training_batch(name).items() if key != "labels"}


@torch.no_grad()
def answers(model: af.Model, name: str) -> dict[str, Tensor]:
    torch.manual_seed(1)  # ELECTRA and MAE draw
    batch = training_batch(name) if name in ("electra-joint-tiny", "mae-tiny") else batch_of(name)
    if "decoder_input_ids" in model.names and "decoder_input_ids" not in batch:
        batch = training_batch(name)
    return flat(model(**batch))


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for field, value in expected.items():
        if value.is_floating_point():
            size = max(float(value.detach().abs().max()), 1.0) if value.numel() else 1.0
            torch.testing.assert_close(found[field], value, rtol=0, atol=2e-5 * size, msg=field)


def plain_and_optimized(model: af.Model) -> Iterator[af.Model]:
    """The same model twice: as it is, and then optimized."""
    yield model
    yield model.optimize()


def classes(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.modules()]


def everything(model: nn.Module) -> dict[str, dict[str, Any]]:
    """All that a module holds besides its children and tensors."""
    children = ("_modules", "_parameters", "_buffers")
    return {
        f"{path} {plain_class(module).__name__}": {k: v for k, v in vars(module).items() if k not in children}
        for path, module in model.named_modules()
    }


@pytest.mark.parametrize("name", tiny_recipes())
def test_tensors_and_answers_stay_and_classes_come_back(name: str) -> None:
    """Names, order, values and identity of parameters; `restore` leaves nothing of what was done."""
    model = built(name)
    before, parameters, kinds = dict(model.state_dict()), dict(model.named_parameters()), classes(model)
    inside, points, expected = everything(model), list(model.points), answers(model, name)
    assert model.optimize() is model
    assert classes(model) != kinds and [plain_class(module) for module in model.modules()] == kinds
    for _ in range(2):
        same(answers(model, name), expected)
    after = model.state_dict()
    assert list(after) == list(before) and model.points == points
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert [*dict(model.named_parameters())] == [*parameters]
    assert all(parameter is parameters[path] for path, parameter in model.named_parameters())
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    assert linears or name == "resnet-tiny"
    assert all(isinstance(module, nn.Linear) and module.weight.dim() == 2 for module in linears)
    model.restore()
    assert classes(model) == kinds
    left = everything(model)
    assert left.keys() == inside.keys()
    for path, held in inside.items():
        assert left[path].keys() == held.keys(), path
    assert all(torch.equal(value, expected[field]) for field, value in answers(model, name).items())


def test_optimizing_again_changes_nothing_and_one_restore_undoes_it() -> None:
    model = built("gpt2-tiny")
    kinds = classes(model)
    once = classes(model.optimize())
    assert classes(model.optimize().optimize(8)) == once
    assert classes(model.restore()) == kinds == classes(model.restore())


def test_who_optimizes(tmp_path: Path) -> None:
    """Loading and generating do, unless they are told not to; a model that was restored stays plain."""
    model = built("gpt2-tiny")
    kinds = classes(model)
    model.save(tmp_path / "x")
    expected = model(IDS).logits
    plain, fast = af.load(tmp_path / "x", optimize=False), af.load(tmp_path / "x")
    assert classes(plain) == kinds != classes(fast)
    assert [plain_class(module) for module in fast.modules()] == kinds
    with torch.no_grad():
        assert torch.equal(plain(IDS).logits, expected)
        torch.testing.assert_close(fast(IDS).logits, expected, rtol=1e-4, atol=1e-5)
    assert plain.packed_bytes == 0 < fast.packed_bytes  # once they are used
    words = plain.generate(IDS, max_new_tokens=6)
    assert classes(plain) == kinds and plain.packed_bytes == 0
    assert torch.equal(fast.generate(IDS, max_new_tokens=6), words)
    assert torch.equal(fast.restore().generate(IDS, max_new_tokens=6), words)
    assert classes(fast) == kinds and fast.packed_bytes == 0
    assert torch.equal(model.generate(IDS, max_new_tokens=6), words) and classes(model) != kinds


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_folder_is_the_same(name: str, tmp_path: Path) -> None:
    """Byte for byte."""
    model = built(name)
    model.save(tmp_path / "plain")
    answers(model.optimize(), name)
    model.save(tmp_path / "fast")
    plain, fast = (
        {file.name: file.read_bytes() for file in (tmp_path / which).iterdir()} for which in ("plain", "fast")
    )
    assert plain == fast


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_tap_shows_what_it_showed(name: str) -> None:
    """All points at once, and each kind of point alone, as a user looks at one."""
    model, seen = built(name), []
    batch = training_batch(name)
    kinds = sorted({point.rsplit(".", 1)[1] for point in model.points})
    for made in plain_and_optimized(model):
        shown = []
        for patterns in (["*"], *([f"*.{kind}"] for kind in kinds)):
            torch.manual_seed(1)
            with torch.no_grad(), af.look(made, *patterns) as found:
                made(**batch)
            shown.append({point: value.clone() for point, value in found.items()})
        seen.append(shown)
    for plain, fast in zip(*seen, strict=True):
        assert plain.keys() == fast.keys() and plain
        for point, value in plain.items():
            assert type(fast[point]) is Tensor and fast[point].shape == value.shape, point
            size = max(float(value.detach().abs().max()), 1.0)
            torch.testing.assert_close(fast[point], value, rtol=0, atol=2e-5 * size, msg=point)


@pytest.mark.parametrize("name", [*KINDS, "deit-tiny", "gemma3-tiny", "gptneox-tiny", "mamba-tiny"])
def test_forward_hooks_see_plain_full_tensors(name: str) -> None:
    """At every module that has weights: the same inputs and outputs as in the plain model, as often."""
    model, seen = built(name), []
    for made in plain_and_optimized(model):
        calls: list[tuple[str, Tensor, Tensor]] = []

        def note(path: str, into: list[tuple[str, Tensor, Tensor]] = calls) -> Any:
            def hook(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
                if given and isinstance(given[0], Tensor) and isinstance(out, Tensor):
                    into.append((path, given[0].clone(), out.clone()))

            return hook

        handles = [
            module.register_forward_hook(note(path))
            for path, module in made.named_modules()
            if list(module.parameters(recurse=False)) and not list(module.children())
        ]
        answers(made, name)
        for handle in handles:
            handle.remove()
        seen.append(calls)
    plain, fast = seen
    assert plain and [(path, x.shape, y.shape) for path, x, y in fast] == [(p, x.shape, y.shape) for p, x, y in plain]
    for (path, *ours), (_, *theirs) in zip(fast, plain, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert type(one) is Tensor
            if one.is_floating_point():
                torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5, msg=path)


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "vit-tiny", "deit-tiny", "resnet-tiny", "perceiver-tiny"])
def test_a_hook_alone_sees_what_it_saw(name: str) -> None:
    """At any one module, with nothing else that would keep the others from being fast."""
    model, seen = built(name), {}
    paths = [path for path, _ in model.named_modules() if path]
    for made in plain_and_optimized(model):
        for path in dict.fromkeys(paths):
            shown: list[Tensor] = []
            handle = made.get_submodule(path).register_forward_hook(
                lambda module, given, out, shown=shown: shown.extend(_vectors(out))
            )
            answers(made, name)
            handle.remove()
            seen.setdefault(path, []).append(shown)
    for path, (plain, fast) in seen.items():
        assert [x.shape for x in fast] == [x.shape for x in plain], path
        for one, other in zip(fast, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5, msg=path)


def test_heads_may_be_replaced() -> None:
    """By one that reads all tokens, where the last one read the class token alone."""
    model, other = built("vit-tiny").optimize(), built("vit-tiny", pooling="mean")
    answers(model, "vit-tiny")
    other.encoder.load_state_dict(model.encoder.state_dict())
    model.set_heads({"classify": other.heads["classify"]})
    same(answers(model, "vit-tiny"), answers(other, "vit-tiny"))


def _vectors(out: Any) -> list[Tensor]:
    """The tensors that a module gives: vectors, tokens, or those of several blocks."""
    if isinstance(out, Tokens):
        return [out.x]
    if isinstance(out, (tuple, list)):
        return [x for one in out for x in _vectors(one)]
    return [out] if isinstance(out, Tensor) and out.is_floating_point() else []


@pytest.mark.parametrize("where", ["qkv", "out", "up", "down"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "vit-tiny"])
def test_one_hook_alone_fires_and_may_change_what_comes_out(name: str, where: str) -> None:
    """In each layer, whatever the others are fused with; `restore` keeps the hook."""
    model, found = built(name), []
    module = next(m for path, m in model.named_modules() if path.endswith(f"blocks.1.{_home(where)}.{where}"))
    shapes = []

    def change(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        shapes.append(tuple(out.shape))
        return out * 1.5

    plain = answers(model, name)
    module.register_forward_hook(change)
    for change_to in (lambda: model, model.optimize, model.restore):
        found.append(answers(change_to(), name))
    same(found[1], found[0])
    same(found[2], found[0])
    assert len(shapes) == 3 and len(set(shapes)) == 1
    assert not torch.allclose(found[0]["logits"], plain["logits"])


def _home(where: str) -> str:
    return "self" if where in ("qkv", "out") else "feedforward"


@pytest.mark.parametrize("kind", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", KINDS)
def test_copies_are_models_of_their_own(name: str, kind: str) -> None:
    """Equal at first; what is written to one is not seen by the other, and each can be restored."""
    model = built(name)
    expected, kinds = answers(model, name), classes(model)
    model.optimize()
    same(answers(model, name), expected)
    other = copy.deepcopy(model) if kind == "deepcopy" else pickle.loads(pickle.dumps(model))
    same(answers(other, name), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05)
    same(answers(model, name), expected)
    changed = answers(other, name)
    assert any(not torch.equal(changed[key], value) for key, value in expected.items())
    assert classes(other.restore()) == kinds
    same(answers(other, name), changed)
    assert classes(model) != kinds


@pytest.mark.parametrize("name", KINDS)
def test_written_weights_are_seen(name: str) -> None:
    """By a step of an optimizer, by loading, by hand: the next answer is the plain model's."""
    plain, model = built(name), built(name).optimize()
    answers(model, name)
    scaled = copy.deepcopy(plain.state_dict())
    for value in scaled.values():
        value.mul_(1.25 if value.is_floating_point() else 1)
    for turn in range(3):
        for made in (plain, model):
            if turn == 0:
                made.load_state_dict(scaled)
                continue
            with torch.no_grad():
                for x in made.parameters():
                    if turn == 1:
                        x.mul_(0.9)
                    else:
                        x.data = x.data * 0.9
        same(answers(model, name), answers(plain, name))


@pytest.mark.parametrize("name", ["gpt2-tiny", "vit-tiny", "resnet-tiny"])
def test_an_optimized_model_is_trained_like_any_other(name: str) -> None:
    """Gradients of all parameters are the plain model's."""
    found = []
    for model in (built(name), built(name).optimize()):
        answers(model, name)
        torch.manual_seed(2)
        model.train()(**training_batch(name)).loss.backward()
        found.append({path: parameter.grad for path, parameter in model.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for path, gradient in found[0].items():
        torch.testing.assert_close(found[1][path], gradient, rtol=1e-4, atol=1e-6, msg=path)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="pip install peft")
@pytest.mark.parametrize("first", ["optimize", "peft"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "bert-tiny"])
def test_adapters_of_peft(name: str, first: str) -> None:
    """Put on before or after: they take part, they alone learn, and merged they give the same numbers."""
    from peft import LoraConfig, get_peft_model

    model = built(name)
    ids, plain = {"input_ids": IDS}, built(name)
    matrices = [path for path, module in model.named_modules() if ".blocks." in path and isinstance(module, Linear)]
    layers = sorted({path.rsplit(".", 1)[1] for path in matrices})
    settings = LoraConfig(r=4, target_modules=layers, init_lora_weights=False)
    if first == "optimize":
        model.optimize()
    torch.manual_seed(3)
    adapted: Any = get_peft_model(model, settings).eval()  # type: ignore[arg-type]
    torch.manual_seed(3)
    reference: Any = get_peft_model(plain, settings).eval()  # type: ignore[arg-type]
    if first == "peft":
        model.optimize()
    with torch.no_grad():
        found, expected = adapted(**ids)[0], reference(**ids)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        with reference.disable_adapter(), adapted.disable_adapter():
            bare = reference(**ids)[0]
            torch.testing.assert_close(adapted(**ids)[0], bare, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(bare, expected, atol=1e-2)
    adapted.train()(**ids)[0].square().mean().backward()
    learned = {path for path, parameter in adapted.named_parameters() if parameter.grad is not None}
    assert learned and all("lora_" in path for path in learned)
    assert learned == {path for path, parameter in adapted.named_parameters() if "lora_" in path}
    merged = adapted.eval().merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(merged(**ids)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WRITERS)
def test_two_threads_generate_on_one_model(name: str) -> None:
    """Each what it writes alone, while the first call of either prepares the model."""
    prompts = [IDS[:1], IDS[1:], IDS[:, :2], IDS]
    expected = [built(name).generate(prompt, max_new_tokens=12) for prompt in prompts]
    for _ in range(3):
        model = built(name)
        found: dict[int, list[Tensor]] = {}
        start = threading.Barrier(len(prompts))

        def write(n: int, model: af.Model = model, found: Any = found, start: Any = start) -> None:
            start.wait()
            found[n] = [model.generate(prompts[n], max_new_tokens=12) for _ in range(3)]

        threads = [threading.Thread(target=write, args=(n,)) for n in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(len(prompts)))
        for n, made in found.items():
            assert all(torch.equal(one, expected[n]) for one in made)


def test_one_thread_looks_while_another_writes() -> None:
    """Watching is a property of the call: the watched one sees everything, the other's words are the same."""
    model = built("gpt2-tiny").optimize()
    expected, seen = model.generate(IDS, max_new_tokens=16), []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            with torch.no_grad(), af.look(model, "*") as found:
                model(IDS)
            seen.append(sorted(found))

    thread = threading.Thread(target=watch)
    thread.start()
    found = [model.generate(IDS, max_new_tokens=16) for _ in range(5)]
    done.set()
    thread.join()
    assert all(torch.equal(one, expected) for one in found)
    assert seen and all(one == sorted(model.points) for one in seen)


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "vit-tiny", "t5-tiny"])
def test_an_optimized_model_compiles_and_exports(name: str, tmp_path: Path) -> None:
    """As one graph, with the plain model's numbers. It can be saved afterwards, and a loaded model exported."""
    model = built(name)
    batch = {"pixel_values": torch.randn(2, 3, 32, 32)} if name == "vit-tiny" else {"input_ids": IDS}
    batch |= {"decoder_input_ids": IDS} if name == "t5-tiny" else {}
    with torch.no_grad():
        expected = model(**batch)[0]
        model.optimize()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(**batch)[0], expected, rtol=1e-4, atol=1e-5)
        for made in (model, None):
            if made is None:
                model.save(tmp_path)
                made = af.load(tmp_path)
                torch.testing.assert_close(made(**batch)[0], expected, rtol=1e-4, atol=1e-5)
            exported = torch.export.export(made, (), kwargs={**batch, "return_dict": False}, strict=False)
            found = exported.module()(**batch, return_dict=False)[0]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
