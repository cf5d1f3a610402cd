"""Objectives: the shares of each spoiling, what is never spoiled, what comes back, and the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import anyformer as af
from anyformer.tasks import objectives
from anyformer.tasks.objectives import Masking

PAD, CLS, SEP, MASK, WORDS = 0, 1, 2, 3, 1000
MASKING = Masking(mask_id=MASK, vocab_size=WORDS)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def text(rows: int = 400, length: int = 100) -> tuple[Tensor, Tensor]:
    """Rows framed by [CLS] and [SEP], a third of each padded."""
    ids = torch.randint(4, WORDS, (rows, length), generator=seeded(9))
    ids[:, 0], ids[:, 65], ids[:, 66:] = CLS, SEP, PAD
    return ids, objectives.special_tokens(ids, (PAD, CLS, SEP))


def likely(count: int, n: int, share: float) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - n * share) <= 5 * math.sqrt(n * share * (1 - share)) + 1


def test_masked_words() -> None:
    """15% of what may be chosen; of those 80% masked, 10% another word (sometimes, by chance, the same), 10% as is."""
    ids, special = text()
    out = objectives.mask_tokens(ids, special, MASKING, seeded())
    chosen = out["labels"] != -100
    n, k = int((~special).sum()), int(chosen.sum())
    assert likely(k, n, 0.15)
    assert not bool((chosen & special).any()) and torch.equal(out["input_ids"][~chosen], ids[~chosen])
    assert torch.equal(out["labels"][chosen], ids[chosen])
    now, was = out["input_ids"][chosen], ids[chosen]
    assert likely(int((now == MASK).sum()), k, 0.8)
    assert likely(int((now == was).sum()), k, 0.1)
    other = now[(now != was) & (now != MASK)]
    assert likely(len(other), k, 0.1)
    assert int(other.min()) < WORDS * 0.1 and int(other.max()) > WORDS * 0.9  # any word, not a corner of them


def test_whole_words() -> None:
    """The tokens of a word are chosen together, words 15% of the time, and neighbors independently."""
    ids, special = text()
    words = (torch.rand(ids.shape, generator=seeded(2)) < 0.6).long().cumsum(dim=1)
    out = objectives.mask_tokens(ids, special, MASKING, seeded(), words)
    chosen = (out["labels"] != -100).long()
    inner = (words[:, 1:] == words[:, :-1]) & ~special[:, 1:] & ~special[:, :-1]
    assert bool(inner.any()) and torch.equal(chosen[:, 1:][inner], chosen[:, :-1][inner])
    begins = (words[:, 1:] != words[:, :-1]) & ~special[:, 1:] & ~special[:, :-1]
    assert likely(int(chosen[:, 1:][begins].sum()), int(begins.sum()), 0.15)
    both = int((chosen[:, 1:] & chosen[:, :-1])[begins].sum())
    assert likely(both, int(begins.sum()), 0.15**2)
    assert not bool((chosen.bool() & special).any())


def test_replaced_tokens() -> None:
    """Of each row 15% are chosen, each token as likely as another, and of those most masked for the generator, as for
    BERT; where they are is said if rows have equally many."""
    ids, special = text()
    out = objectives.replaced_tokens(ids, special, MASKING, seeded())
    chosen = out["labels"] != -100
    assert torch.equal(chosen.sum(dim=1), ((~special).sum(dim=1) * 0.15).round().long())
    drawn = torch.stack([
        objectives.replaced_tokens(ids[:1], special[:1], MASKING, seeded(seed))["labels"][0] != -100
        for seed in range(400)
    ])  # fmt: skip
    some = [i for i in range(ids.shape[1]) if not special[0, i]][:5]
    assert all(likely(int(drawn[:, i].sum()), 400, int(chosen[0].sum()) / int((~special[0]).sum())) for i in some)
    full = torch.zeros_like(special)
    even = objectives.replaced_tokens(ids, full, MASKING, seeded())
    assert torch.equal(even["gaps"].sort(dim=1).values.flatten(), (even["labels"] != -100).nonzero()[:, 1])
    full[0, 1:] = True
    assert "gaps" not in objectives.replaced_tokens(ids, full, MASKING, seeded())
    masked = out["input_ids"] == MASK
    assert likely(int((masked & chosen).sum()), int(chosen.sum()), 0.8)
    assert likely(int((out["input_ids"] == ids)[chosen].sum()), int(chosen.sum()), 0.1 + 0.1 / WORDS)
    assert torch.equal(out["input_ids"][~chosen], ids[~chosen])
    assert not bool((chosen & special).any())


@pytest.mark.parametrize("length", [2, 3, 5, 17, 100, 512])
def test_span_corruption_comes_back(length: int) -> None:
    """Input and target together hold the whole text, at every length."""
    ids = torch.randint(4, WORDS, (length,), generator=seeded(length))
    sentinels = list(range(2000, 1900, -1))
    for seed in range(20):
        source, target = objectives.span_corruption(ids, sentinels, 1, seeded(seed))
        assert torch.equal(objectives.restore(source, target, sentinels), ids)
        used = [token for token in source.tolist() if token in sentinels]
        assert used == sentinels[: len(used)] and target[-2] == sentinels[len(used)]  # in order, and one to close
        assert source[-1] == 1 and target[-1] == 1


def test_spans() -> None:
    """15% noise in spans of 3 on average, which do not touch; any place may be noise but the first."""
    marks = torch.stack([objectives.spans(512, seeded(seed)) for seed in range(300)])
    assert bool((marks.sum(dim=1) == 77).all())  # round(512 · 0.15)
    starts = marks & ~F.pad(marks[:, :-1], (1, 0))
    assert bool((starts.sum(dim=1) == 26).all())  # round(77 / 3)
    assert not bool(marks[:, 0].any()) and bool(marks[:, -1].all())
    middle = marks[:, 100:400].float().mean(dim=0)
    assert float(middle.min()) > 0.05 and float(middle.max()) < 0.27
    lengths = {int(length) for row in range(300) for length in _runs(marks[row])}
    assert {1, 2, 3, 4, 5} <= lengths


def _runs(marks: Tensor) -> list[int]:
    edges = F.pad(marks.long(), (1, 1)).diff()
    return (edges.eq(-1).nonzero() - edges.eq(1).nonzero()).flatten().tolist()


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5, 0.75])
def test_infilling_leaves_the_rest_in_place(rate: float) -> None:
    """Row by row, in plain Python: what is gone has one mark for each run, the rest is in order, special ones stay.
    Every place is as likely to go, and runs are three long on average."""
    mark, rows, length = 3, 1000, 60
    ids = torch.arange(length).expand(rows, -1) + 10
    mask = torch.ones_like(ids)
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 50:], special[0] = True, True
    mask[:, 55:] = 0
    out = objectives.infilling({"input_ids": ids, "attention_mask": mask}, special, mark, 0, seeded(), rate)
    assert out["input_ids"].shape == out["attention_mask"].shape == (rows, 55)
    assert torch.equal(out["input_ids"][0], ids[0, :55]) and bool(out["attention_mask"][0].all())
    missing, runs = torch.zeros(length), []
    for row, real in list(zip(out["input_ids"].tolist(), out["attention_mask"].tolist(), strict=True))[1:]:
        left = [token for token, counts in zip(row, real, strict=True) if counts]
        assert row == left + [0] * (55 - len(left))
        assert real == [1] * len(left) + [0] * (55 - len(left)) and (mark, mark) not in pairwise(left)
        kept = [token - 10 for token in left if token != mark]
        assert kept == sorted(set(kept)) and kept[-5:] == [50, 51, 52, 53, 54]
        gone = [place for place in range(50) if place not in kept]
        begins = [place for place in gone if place - 1 not in gone]
        in_order = sorted([*kept, *begins])
        assert [token == mark for token in left] == [place in begins for place in in_order]
        missing[gone] += 1
        ends = [place for place in gone if place + 1 not in gone]
        whole = zip(begins, ends, strict=True)
        runs += [end - begin + 1 for begin, end in whole if begin > 0 and end < 30]  # those that end are short
    share = missing[:50] / (rows - 1)
    assert abs(float(share.mean()) - rate) < 0.02 and float((share - rate).abs().max()) < 0.07
    assert {1, 2, 3, 4, 5, 6, 7} <= set(runs) and 2.6 < sum(runs) / len(runs) < 3.1


@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_short_texts_lose_as_much(length: int) -> None:
    ids = torch.arange(length).expand(4000, -1) + 10
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    out = objectives.infilling(batch, torch.zeros_like(ids, dtype=torch.bool), 3, 0, seeded(), 0.3)
    kept = int(((out["input_ids"] != 3) & (out["attention_mask"] > 0)).sum())
    assert 1 - kept / ids.numel() == pytest.approx(0.3, abs=0.02)


def test_too_few_sentinels() -> None:
    with pytest.raises(af.InputError, match=r"10 .* 11 .* 2\b"):
        objectives.span_corruption(torch.arange(200), [500, 501], 1, seeded())


def test_sentence_pairs() -> None:
    """Half of the pairs follow each other in a document, the others come from another one."""
    documents = [[f"{d}.{s}" for s in range(20)] for d in range(60)] + [[]]
    pairs = objectives.sentence_pairs(documents, seeded())
    assert len(pairs) == 60 * 19
    assert likely(sum(label for _, _, label in pairs), len(pairs), 0.5)
    for first, second, label in pairs:
        (d, s), (e, t) = (tuple(map(int, name.split("."))) for name in (first, second))
        assert (d != e) if label else (d == e and t == s + 1)
    with pytest.raises(af.InputError, match="two documents"):
        objectives.sentence_pairs(documents[:1], seeded())


def test_teacher_forcing() -> None:
    """The decoder reads start, a, b and must say a, b, end; padding does not count."""
    targets = torch.tensor([[5, 6, 1, PAD], [7, 8, 9, 1]])
    out = objectives.teacher_forcing(targets, start=2, padding=PAD)
    assert out["decoder_input_ids"].tolist() == [[2, 5, 6, 1], [2, 7, 8, 9]]
    assert out["labels"].tolist() == [[5, 6, 1, -100], [7, 8, 9, 1]]


def test_causal() -> None:
    """The loss of a decoder under these labels is that of each real token after the one before it."""
    ids, mask = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 1, 1, 0]])
    model = af.build("gpt2-tiny").eval()
    out = model(**objectives.causal(ids, mask))
    expected = F.cross_entropy(model(ids[:, :2]).logits[0], ids[0, 1:3])
    torch.testing.assert_close(out.loss, expected)


def test_distillation() -> None:
    """Zero for the teacher's own answers, the divergence by its formula otherwise, no gradient to the teacher."""
    student = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    assert float(objectives.distillation_loss(teacher, teacher).abs()) < 1e-6
    p, q = ((x / 4).exp() / (x / 4).exp().sum(dim=-1, keepdim=True) for x in (teacher, student))
    each = (p * (p / q).log()).sum(dim=-1) * 16
    found = objectives.distillation_loss(student, teacher, temperature=4.0)
    torch.testing.assert_close(found.double(), each.mean(), rtol=1e-5, atol=1e-7)
    found.backward()
    assert student.grad is not None and teacher.grad is None
    counts = torch.rand(3, 5) < 0.5
    some = objectives.distillation_loss(student, teacher, 4.0, counts)
    torch.testing.assert_close(some.double(), each[counts].mean(), rtol=1e-5, atol=1e-7)


def _flat(value: object) -> list[object]:
    if isinstance(value, Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict):
        return [item for part in value.values() for item in _flat(part)]
    return [item for part in value for item in (_flat(part) if isinstance(part, Tensor) else [part])]  # type: ignore[attr-defined]


IDS, SPECIAL = text(8, 80)
DOCUMENTS = [[str(10 * d + s) for s in range(6)] for d in range(6)]


@pytest.mark.parametrize(
    "make",
    [
        lambda g: objectives.mask_tokens(IDS, SPECIAL, MASKING, g),
        lambda g: objectives.mask_tokens(IDS, SPECIAL, MASKING, g, IDS // 2),
        lambda g: objectives.replaced_tokens(IDS, SPECIAL, MASKING, g),
        lambda g: objectives.sentence_pairs(DOCUMENTS, g),
        lambda g: objectives.span_corruption(IDS[0], range(2000, 2050), 1, g),
        lambda g: objectives.infilling(
            {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, SPECIAL, MASK, PAD, g, 0.3
        ),
    ],
    ids=["masked", "whole words", "replaced", "pairs", "spans", "gaps"],
)
def test_same_seed_same_result(make: Callable[[Generator], object]) -> None:
    """And another seed another one; the global seed plays no part."""
    torch.manual_seed(1)
    first = _flat(make(seeded(4)))
    torch.manual_seed(2)
    assert _flat(make(seeded(4))) == first
    assert _flat(make(seeded(5))) != first
