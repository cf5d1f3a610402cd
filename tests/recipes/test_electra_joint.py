"""ELECTRA's training: two models that share their vectors, and a loss that is the sum of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.inputs.replaced_tokens import gumbel_sample
from anyformer.recipes.electra_joint import JointELECTRAConfig, discriminator
from tests.recipes.batches import training_batch


def alone(joint: af.Model, which: str) -> af.Model:
    """The generator or the discriminator as a model of the family electra, with the joint model's weights."""
    assert isinstance(joint.config, JointELECTRAConfig)
    settings = getattr(joint.config, which)
    model = af.build("electra-tiny", **settings.to_json()).eval()
    renamed = {}
    for name, tensor in joint.state_dict().items():
        name = name.replace("discriminator.inputs.words.", "words.")
        name = name.replace("discriminator.inputs.text.", "discriminator.inputs.")
        renamed[name.replace(f"{which}.", "encoder.")] = tensor
    model.load_state_dict({name: renamed[name] for name in model.state_dict()})
    return model


def test_the_vectors_are_shared() -> None:
    """Words, positions and types are one table each; so is the generator's output."""
    model = af.build("electra-joint-tiny").eval()
    one, other = model.stages["generator"].inputs, model.stages["discriminator"].inputs.text
    assert one.words.weight is other.words.weight is model.stages["discriminator"].inputs.words.words.weight
    assert one.positions.weight is other.positions.weight and one.types.weight is other.types.weight
    assert one.norm.weight is not other.norm.weight


def test_all_may_be_shared(tmp_path: Path) -> None:
    """But for the heads: a step moves both the same, a folder holds them once, and the discriminator is the encoder."""
    size = af.build("electra-tiny").config
    model = af.build("electra-joint-tiny", discriminator=size, generator=size.replace(head="masked"), tied="all").eval()
    one, other = model.stages["generator"], model.stages["discriminator"]
    pairs = list(zip(one.stack.blocks.parameters(), other.stack.blocks.parameters(), strict=True))
    assert pairs and all(a is b for a, b in pairs) and one.inputs.norm.weight is other.inputs.text.norm.weight
    single = sum(p.numel() for p in af.build("electra-tiny").parameters())
    words = sum(p.numel() for p in other.inputs.words.parameters() if p is not one.inputs.words.weight)
    assert sum(p.numel() for p in model.parameters()) == single + words
    batch = training_batch("electra-joint-tiny")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**batch).loss.backward()
    optimizer.step()
    model.save(tmp_path / "x")
    again = af.load(tmp_path / "x", optimize=False)
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).loss, model.eval()(**batch).loss)
    assert all(
        a is b
        for a, b in zip(
            again.stages["generator"].stack.blocks.parameters(),
            again.stages["discriminator"].stack.blocks.parameters(),
            strict=True,
        )
    )
    encoder = discriminator(model)
    ids = batch["input_ids"]
    with torch.no_grad():
        found = encoder(input_ids=ids, attention_mask=batch["attention_mask"]).logits
        torch.testing.assert_close(found, model(input_ids=ids, attention_mask=batch["attention_mask"]).logits)
    with pytest.raises(af.ConfigError, match="of the discriminator's size"):
        af.build("electra-joint-tiny", tied="all")


def test_loss_is_the_sum_of_both() -> None:
    """Masked words + 50 · replaced tokens, each as the family electra gives it for the same texts."""
    torch.manual_seed(0)
    model = af.build("electra-joint-tiny").eval()
    batch = training_batch("electra-joint-tiny")
    with torch.no_grad():
        out = model(**batch)
        generator, discriminator = alone(model, "generator"), alone(model, "discriminator")
        masked = {name: batch[name] for name in ("input_ids", "attention_mask")}
        words = generator(**masked, labels=batch["labels"])
        chosen = batch["labels"] != -100
        filled = batch["input_ids"].clone()
        filled[chosen] = gumbel_sample(words.logits[chosen], batch["noise"][chosen])
        wrong = chosen & (filled != batch["labels"])
        found = discriminator(input_ids=filled, attention_mask=batch["attention_mask"], labels=wrong.long())
    torch.testing.assert_close(out.generator_loss, words.loss)
    torch.testing.assert_close(out.discriminator_loss, found.loss)
    torch.testing.assert_close(out.loss, words.loss + 50 * found.loss)
    assert torch.equal(out.replaced, wrong) and bool(wrong.any())
    torch.testing.assert_close(out.logits, found.logits)


def test_gaps_that_are_told() -> None:
    """The same answers and losses as with gaps that are looked for, in whatever order they are told."""
    torch.manual_seed(0)
    model = af.build("electra-joint-tiny").eval()
    batch = training_batch("electra-joint-tiny")
    gaps = torch.tensor([[5, 1, 3], [2, 7, 0]])
    places = torch.zeros(2, 8, dtype=torch.bool).scatter(1, gaps, True)
    batch = {**batch, "labels": torch.where(places, torch.randint(5, 250, (2, 8)), -100)}
    batch["input_ids"] = batch["input_ids"].masked_fill(places, 4)
    with torch.no_grad():
        looked, told = model(**batch), model(**batch, gaps=gaps)
    for name in ("loss", "generator_loss", "discriminator_loss", "logits"):
        torch.testing.assert_close(told[name], looked[name])
    assert torch.equal(told.replaced, looked.replaced)


def test_a_word_drawn_right_counts_as_real() -> None:
    """Noise that makes the generator draw the original everywhere: nothing was replaced."""
    model = af.build("electra-joint-tiny").eval()
    batch = training_batch("electra-joint-tiny")
    noise = torch.full((2, 8, 256), 1e-30)
    noise.scatter_(2, batch["labels"].clamp(min=0).unsqueeze(-1), 1 - 1e-6)
    out = model(**{**batch, "noise": noise})
    assert not bool(out.replaced.any())
    assert float(out.generator_loss) > 1  # it is taught the words all the same


def test_no_gradient_through_the_draw() -> None:
    """The generator learns from its own loss alone, not from what the discriminator makes of its words."""
    model = af.build("electra-joint-tiny").eval()
    batch = training_batch("electra-joint-tiny")
    model(**batch).discriminator_loss.backward()
    touched = [name for name, p in model.stages["generator"].stack.blocks.named_parameters() if p.grad is not None]
    assert not touched


def test_draws_follow_the_scores() -> None:
    """The Gumbel trick draws each word as often as its probability says."""
    torch.manual_seed(0)
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0])
    drawn: Tensor = gumbel_sample(scores.expand(40_000, 4))
    shares = torch.bincount(drawn, minlength=4) / 40_000
    expected = scores.exp() / scores.exp().sum()
    torch.testing.assert_close(shares, expected, rtol=0, atol=5 * 0.5 / 200)


def test_without_labels_the_discriminator_reads_the_text() -> None:
    model = af.build("electra-joint-tiny").eval()
    batch = training_batch("electra-joint-tiny")
    with torch.no_grad():
        ours = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        expected = alone(model, "discriminator")(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    torch.testing.assert_close(ours, expected.logits)


def test_draws_among_many_words_in_half_precision() -> None:
    """Equal scores, equal probabilities: the middle word is met half-way, and none is favored."""
    torch.manual_seed(0)
    drawn = gumbel_sample(torch.zeros(1, dtype=torch.bfloat16).expand(4000, 1000))
    assert abs(float(drawn.float().mean()) - 499.5) < 5 * 1000 / 12**0.5 / 4000**0.5
    assert int(torch.bincount(drawn, minlength=1000).max()) < 20
