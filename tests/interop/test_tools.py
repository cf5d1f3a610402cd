"""Other libraries used on models as they come, the way their own documentation does. `make interop` installs them all;
a test is skipped where its library is absent."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af

IDS = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1])


NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def stack_of(model: af.Model) -> Any:
    return next(iter(model.stages.values())).stack


# Trainer


def train(folder: Path, resume: str | None = None, uneven: bool = False, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    generator = torch.Generator().manual_seed(0)
    rows = [{"input_ids": torch.randint(5, 200, (9,), generator=generator)} for _ in range(40)]
    data = [{**row, "labels": row["input_ids"].clone()} for row in rows]
    for n, row in enumerate(data):
        row["labels"][9 - (n % 7 if uneven else 0) :] = -100
    torch.manual_seed(0)
    settings = {
        "max_steps": 20,
        "per_device_train_batch_size": 2,
        "save_steps": 10,
        "logging_steps": 10,
        "learning_rate": 1e-3,
        **options,
    }
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, seed=0, **settings
    )
    model = af.build("gpt2-tiny", **(NO_DROPOUT if uneven else {}))
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.slow
def test_trainer_trains_saves_and_resumes(tmp_path: Path) -> None:
    trainer = train(tmp_path)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 2 and losses[1] < losses[0]
    assert trainer.evaluate()["eval_loss"] < losses[0]
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (4, 9, 256)
    resumed = train(tmp_path, resume=str(tmp_path / "checkpoint-10"))
    for ours, theirs in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    table, head = trainer.model.get_input_embeddings(), trainer.model.get_output_embeddings()
    assert table.weight is head.weight


@pytest.mark.slow
def test_trainer_accumulates_as_one_batch(tmp_path: Path) -> None:
    """Two batches of two rows of uneven length train as one of four: the loss is divided by the labels of all."""
    off = {"max_steps": 2, "save_strategy": "no", "optim": "sgd", "learning_rate": 0.1, "uneven": True}
    whole = train(tmp_path / "whole", per_device_train_batch_size=4, **off)
    parts = train(tmp_path / "parts", gradient_accumulation_steps=2, gradient_checkpointing=True, **off)
    assert parts.model_accepts_loss_kwargs and parts.model.is_gradient_checkpointing
    assert parts.model.config.use_cache is False and whole.state.global_step == parts.state.global_step == 2
    for ours, theirs in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


# accelerate and Fabric


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = af.build("bert-tiny", head="classify")
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    loss = model(input_ids=IDS, labels=CLASSES).loss
    accelerator.backward(loss)
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer.step()
    accelerator.load_state(str(tmp_path / "state"))
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    accelerator.save_model(model, str(tmp_path / "model"))
    accelerator.unwrap_model(model).save(tmp_path / "ours")
    torch.testing.assert_close(af.load(tmp_path / "ours")(IDS).logits, model.eval()(IDS).logits)


def test_fabric(tmp_path: Path) -> None:
    fabric_of = pytest.importorskip("lightning.fabric").Fabric
    fabric = fabric_of(accelerator="cpu", devices=1)
    fabric.launch()
    model = af.build("gpt2-tiny")
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    losses = []
    for _ in range(5):
        loss = model(input_ids=IDS, labels=IDS).loss
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    state = {"model": model, "optimizer": optimizer}
    fabric.save(tmp_path / "state.ckpt", state)
    kept = [p.clone() for p in model.parameters()]
    optimizer.step()
    fabric.load(tmp_path / "state.ckpt", state)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


# peft


@pytest.mark.parametrize("targets", [["qkv", "out"], "all-linear"])
def test_peft(targets: Any) -> None:
    peft = pytest.importorskip("peft")
    base = af.build("gpt2-tiny", **NO_DROPOUT)
    before = base(IDS).logits
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=targets, r=4))
    assert torch.equal(model(input_ids=IDS).logits, before), "an adapter begins with no effect"
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] and sum(p.numel() for p in trainable) < base.num_parameters() / 4
    model.eval()
    assert model.generate(input_ids=IDS, max_new_tokens=3).shape == (2, 12)
    if targets == "all-linear":  # the head's too, whose weight is the input table's: peft warns of merging those
        return
    adapted = model(input_ids=IDS).logits
    torch.testing.assert_close(model.merge_and_unload()(IDS).logits, adapted, atol=1e-5, rtol=1e-4)


def test_peft_of_a_classifier_and_prompts() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["qkv"], modules_to_save=["classify"])
    model = peft.get_peft_model(af.build("bert-tiny", head="classify"), config)
    model(input_ids=IDS, labels=CLASSES).loss.backward()
    shape = {"num_layers": 2, "token_dim": 64, "num_attention_heads": 4, "num_transformer_submodules": 1}
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, **shape)
    model = peft.get_peft_model(af.build("gpt2-tiny"), prompts)
    model(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS).loss.backward()
    assert [p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad] == [True]


# PyTorch's own


def inputs_of(name: str) -> dict[str, Tensor]:
    return {"pixel_values": PIXELS} if name == "vit-tiny" else {"input_ids": IDS}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "vit-tiny"])
def test_export_of_a_bare_model(name: str, masked: bool) -> None:
    if name == "vit-tiny" and masked:
        pytest.skip("images have no padding here")
    model, batch = af.build(name).eval(), inputs_of(name)
    batch |= {"attention_mask": torch.ones_like(IDS)} if masked else {}
    batch = {key: torch.cat([value, value[:1]]) for key, value in batch.items()}
    sizes = {key: {0: torch.export.Dim("batch", min=2, max=64)} for key in batch}
    program = torch.export.export(model, (), batch, dynamic_shapes=sizes)
    larger = {key: torch.cat([value, value]) for key, value in batch.items()}
    with torch.no_grad():
        torch.testing.assert_close(program.module()(**larger)[0], model(**larger)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "vit-tiny"])
def test_jit_trace(name: str, tmp_path: Path) -> None:
    model, (given, x) = af.build(name).eval(), *inputs_of(name).items()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_position = torch.jit.trace(model, (x,), strict=False)
        by_name = torch.jit.trace(model, example_kwarg_inputs={given: x}, strict=False)
        by_name.save(tmp_path / "model.pt")
        again = torch.jit.load(tmp_path / "model.pt")
        field, expected = next(iter(model(x.flip(0)).items()))
        for found in (by_position(x.flip(0)), again(**{given: x.flip(0)})):
            torch.testing.assert_close(found[field], expected)


@pytest.mark.parametrize("name", ["mamba-tiny", "vit-tiny", "gpt2-tiny", "bert-tiny"])
def test_gradients_of_each_row(name: str) -> None:
    """torch.func's tutorial: vmap(grad(loss)) is the gradient of each example."""
    model, (given, x) = af.build(name).eval(), *inputs_of(name).items()
    labels = CLASSES if name == "vit-tiny" else x
    parameters = {path: p.detach() for path, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        batch = {given: x.unsqueeze(0), "labels": label.unsqueeze(0)}
        found: Tensor = torch.func.functional_call(model, parameters, (), batch).loss
        return found

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, labels)
    for row in range(len(x)):
        model.zero_grad()
        model(**{given: x[row : row + 1], "labels": labels[row : row + 1]}).loss.backward()
        for path, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(found[path][row], p.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "vit-tiny", "mamba-tiny"])
def test_compiled_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    model, (given, x) = af.build(name).eval(), *inputs_of(name).items()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for found in (compiled(x), compiled(**{given: x})):
            assert type(found) is af.Output and found.hidden_states is None
            torch.testing.assert_close(found[0], model(x)[0])


def test_fully_shard() -> None:
    """FSDP2's tutorial, in one process."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29583", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = af.build("gpt2-tiny", **NO_DROPOUT)
        expected = model(IDS, labels=IDS).loss.detach()
        for block in stack_of(model).blocks:
            fsdp.fully_shard(block)
        fsdp.fully_shard(model)
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        torch.testing.assert_close(loss.detach(), expected)
        assert all(p.grad is not None for p in model.parameters())
    finally:
        dist.destroy_process_group()


# Others


def test_torchinfo() -> None:
    torchinfo = pytest.importorskip("torchinfo")
    for name in ("bert-tiny", "vit-tiny"):
        model, batch = af.build(name).eval(), inputs_of(name)
        told = torchinfo.summary(model, input_data=batch, depth=6, verbose=0)
        layers = {id(one.module): one for one in told.summary_list}
        block = stack_of(model).blocks[0]
        assert layers[id(block)].output_size[-1] == 64 and "Sublayer" in str(told)


def test_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    text = af.build("bert-tiny", head="classify").eval()

    def classes(ids: Tensor, mask: Tensor) -> Any:
        return text(ids, mask).logits.softmax(-1)

    method = captum.LayerIntegratedGradients(classes, text.get_input_embeddings())
    given = {"inputs": IDS, "baselines": torch.zeros_like(IDS), "additional_forward_args": (torch.ones_like(IDS),)}
    found, error = method.attribute(**given, target=1, n_steps=20, return_convergence_delta=True)
    assert found.shape == (2, 9, 64) and float(error.abs().max()) < 1e-3

    image = af.build("vit-tiny").eval()

    def logits(pixels: Tensor) -> Any:
        return image(pixels).logits

    assert captum.IntegratedGradients(logits).attribute(PIXELS, target=3, n_steps=5).shape == PIXELS.shape
    layer = stack_of(image).blocks[0].get_submodule("feedforward")
    assert captum.LayerGradientXActivation(logits, layer).attribute(PIXELS, target=3).shape[::2] == (2, 64)


def test_relevance_of_attention() -> None:
    """Chefer et al. 2021 weight attention by its gradient: the weights that are returned lie on the way to the loss."""
    model = af.build("bert-tiny", head="classify").eval()
    out = model(IDS, output_attentions=True)
    gradients = torch.autograd.grad(out.logits[:, 1].sum(), out.attentions)
    assert len(gradients) == 2 and all(bool(g.abs().sum() > 0) for g in gradients)
    relevance = torch.eye(9).expand(2, 9, 9)
    for weights, gradient in zip(out.attentions, gradients, strict=True):
        relevance = relevance + (weights * gradient).clamp(min=0).mean(dim=1) @ relevance
    assert relevance.shape == (2, 9, 9) and not torch.equal(relevance, torch.eye(9).expand(2, 9, 9))


def test_torchao() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = af.build("gpt2-tiny").eval()
    with torch.no_grad():
        before = model(IDS).logits
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
        linear = [module for module in stack_of(model).modules() if isinstance(module, nn.Linear)]
        assert linear and all(type(module.weight) is not nn.Parameter for module in linear)
        assert 0 < float((model(IDS).logits - before).abs().max()) < 0.1
