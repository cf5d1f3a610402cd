"""Pre-training objectives on text: corrupt the input and predict the original.

Each is a pure function of a batch and a seeded `torch.Generator`. `special` [B, T] marks tokens that are kept: padding,
[CLS], [SEP]. The label -100 is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.errors import InputError
from anyformer.forward_context import IGNORED


@dataclass(frozen=True)
class Masking:
    """BERT's masking (Devlin et al. 2019, §3.1): `rate` of the tokens are predicted; most of these become the mask
    token, some a random token, the rest stay.
    """

    mask_id: int
    vocab_size: int
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1


def special_tokens(input_ids: Tensor, ids: Sequence[int]) -> Tensor:
    """Where one of `ids` stands."""
    return torch.isin(input_ids, torch.tensor(list(ids), dtype=input_ids.dtype, device=input_ids.device))


def causal(input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
    """Say the next token. The labels are the tokens themselves: a decoder's head shifts them."""
    if attention_mask is None:
        return {"input_ids": input_ids, "labels": input_ids.clone()}
    labels = input_ids.masked_fill(attention_mask == 0, IGNORED)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def teacher_forcing(targets: Tensor, start: int, padding: int) -> dict[str, Tensor]:
    """A decoder reads what it should have said so far: targets [B, T] that end in `padding`."""
    labels = targets.masked_fill(targets == padding, IGNORED)
    return {"decoder_input_ids": F.pad(targets[:, :-1], (1, 0), value=start), "labels": labels}


def choose_positions(special: Tensor, rate: float, generator: Generator, words: Tensor | None = None) -> Tensor:
    """The places to spoil [B, T]: each with the chance `rate`, special ones never.

    `words` [B, T] numbers the word of each token within its row; the tokens of a word are then chosen together.
    """
    drawn = torch.rand(special.shape, generator=generator)
    if words is not None:
        drawn = drawn.gather(1, _first_of_word(words.cpu()))
    return (drawn.to(special.device) < rate) & ~special


def _first_of_word(words: Tensor) -> Tensor:
    """The place of the first token of each token's word.  [0, 0, 1] -> [0, 0, 2]"""
    begins = torch.ones_like(words, dtype=torch.bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    places = torch.arange(words.shape[1]).expand_as(words)
    return torch.where(begins, places, 0).cummax(dim=1).values


def mask_tokens(
    input_ids: Tensor, special: Tensor, masking: Masking, generator: Generator, words: Tensor | None = None
) -> dict[str, Tensor]:
    """BERT's masked words; with `words` (see `choose`) its whole-word masking."""
    chosen = choose_positions(special, masking.rate, generator, words)
    spoiled = _corrupt(input_ids, chosen, masking, generator)
    return {"input_ids": spoiled, "labels": input_ids.masked_fill(~chosen, IGNORED)}


def _corrupt(input_ids: Tensor, chosen: Tensor, masking: Masking, generator: Generator) -> Tensor:
    """Chosen tokens masked, replaced by chance, or left, as `masking` says."""
    kind = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
    other = torch.randint(masking.vocab_size, input_ids.shape, generator=generator).to(input_ids.device)
    spoiled = input_ids.masked_fill(chosen & (kind < masking.masked), masking.mask_id)
    swapped = chosen & (kind >= masking.masked) & (kind < masking.masked + masking.random)
    return torch.where(swapped, other, spoiled)


def replaced_tokens(input_ids: Tensor, special: Tensor, masking: Masking, generator: Generator) -> dict[str, Tensor]:
    """For ELECTRA's two models at once: the labels say what stood at the chosen tokens. The generator says it too, and
    what the discriminator must find follows from its answers (see the recipe electra-joint).

    As in the authors' code each row has `rate` of its tokens chosen, to the nearest number. The generator is shown what
    BERT would be: most of them masked, some replaced by chance, some as they are (that code masks 85% and leaves the
    rest). Where rows have equally many, `gaps` [B, n] says where they are.
    """
    drawn = torch.rand(input_ids.shape, generator=generator).to(input_ids.device).masked_fill(special, 2.0)
    order = drawn.argsort(dim=1)
    many = ((~special).sum(dim=1) * masking.rate).round().long()
    chosen = (order.argsort(dim=1) < many.unsqueeze(1)) & ~special
    batch = {
        "input_ids": _corrupt(input_ids, chosen, masking, generator),
        "labels": input_ids.masked_fill(~chosen, IGNORED),
    }
    same = len(many) > 0 and bool((many == many[0]).all())
    return {**batch, "gaps": order[:, : int(many[0])].contiguous()} if same else batch


def sentence_pairs(
    documents: Sequence[Sequence[str]], generator: Generator, rate: float = 0.5
) -> list[tuple[str, str, int]]:
    """BERT's next sentences: (a, b, 0) where b follows a; with the chance `rate` (a, b, 1), b of another document."""
    if sum(1 for document in documents if document) < 2:
        raise InputError("Next-sentence prediction needs two documents or more.")
    pairs = []
    for number, document in enumerate(documents):
        others = [i for i, other in enumerate(documents) if i != number and other]
        for first, second in pairwise(document):
            if float(torch.rand((), generator=generator)) < rate:
                other = documents[others[int(torch.randint(len(others), (), generator=generator))]]
                pairs.append((first, other[int(torch.randint(len(other), (), generator=generator))], 1))
            else:
                pairs.append((first, second, 0))
    return pairs


def spans(length: int, generator: Generator, rate: float = 0.15, mean: float = 3.0) -> Tensor:
    """T5's noise [length]: `rate` of the tokens, in spans of `mean` tokens on average, cut at random, none touching;
    the first token is never noise (Raffel et al. 2020, §3.1.4).
    """
    noise = min(max(round(length * rate), 1), length - 1)
    if length < 2:
        return torch.zeros(length, dtype=torch.bool)
    n = max(min(round(noise / mean), noise, length - noise), 1)
    pieces = torch.stack([_cut(length - noise, n, generator), _cut(noise, n, generator)], dim=1).flatten()
    return (torch.arange(2 * n) % 2 == 1).repeat_interleave(pieces)


def _cut(total: int, n: int, generator: Generator) -> Tensor:
    """`total` as n parts of at least 1, every such way equally likely."""
    cuts = torch.randperm(total - 1, generator=generator)[: n - 1].sort().values + 1
    ends = torch.tensor([total])
    return torch.cat([cuts, ends]).diff(prepend=torch.tensor([0]))


def span_corruption(
    ids: Tensor, sentinels: Sequence[int], end: int, generator: Generator, rate: float = 0.15, mean: float = 3.0
) -> tuple[Tensor, Tensor]:
    """T5's objective for one text [T] without its end: each span is a sentinel in the input, and the target says for
    each sentinel what stood there.   a b c d e -> a <0> d e </s>,  <0> b c <1> </s>
    """
    return corrupt(ids, spans(len(ids), generator, rate, mean), sentinels, end)


def corrupt(ids: Tensor, noise: Tensor, sentinels: Sequence[int], end: int) -> tuple[Tensor, Tensor]:
    starts = noise & ~F.pad(noise[:-1], (1, 0))
    n = int(starts.sum())
    if n + 1 > len(sentinels):
        raise InputError(f"{n} spans need {n + 1} sentinel tokens; the vocabulary has {len(sentinels)}.")
    marks = torch.tensor(list(sentinels), dtype=ids.dtype)
    number = starts.long().cumsum(0) - 1  # of the span that began last
    source = torch.where(starts, marks[number.clamp(min=0)], ids)[~noise | starts]
    pieces = [torch.cat([marks[i : i + 1], ids[noise & (number == i)]]) for i in range(n)]
    close = torch.tensor([end], dtype=ids.dtype)
    return torch.cat([source, close]), torch.cat([*pieces, marks[n : n + 1], close])


MAX_REMOVED = 0.75  # the share of tokens that runs of three can take where one token at least lies between them


def infilling(
    batch: dict[str, Tensor],
    special: Tensor,
    mark: int,
    padding: int,
    generator: Generator,
    rate: float,
    mean: float = 3.0,
) -> dict[str, Tensor]:
    """BART's noise (Lewis et al. 2020, §2.2): of `input_ids` [B, T] `rate` are left out, in runs of `mean` on average,
    with one mark for each run, so that how many are missing must be found out too. What is left moves together, and
    `attention_mask` with it.   a b c d e -> a <mask> d e
    """
    ids, mask = batch["input_ids"], batch["attention_mask"]
    gone = _runs(ids.shape, rate, mean, generator).to(ids.device) & ~special
    starts = gone & ~F.pad(gone[:, :-1], (1, 0))
    kept = ~gone | starts
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    mask = (mask * kept).gather(1, order)
    ids = ids.masked_fill(starts, mark).gather(1, order).masked_fill(mask == 0, padding)
    longest = int(mask.sum(dim=1).max())
    return {"input_ids": ids[:, :longest], "attention_mask": mask[:, :longest]}


def _runs(shape: torch.Size, rate: float, mean: float, generator: Generator) -> Tensor:
    """Where runs are [B, T], `mean` long on average, with `rate` of all places in them. Runs, and what lies between
    them, end with an even chance everywhere; so a row may begin in the middle of one, and all places are as likely."""
    ends = [rate / ((1 - rate) * mean), 1 / mean]  # the chance that text ends, and that a run does
    rows, length = shape
    draws = torch.rand(rows, length, 2, generator=generator).clamp(min=1e-9).log()
    sizes = [1 + (draws[..., i] / math.log1p(-min(end, 1 - 1e-9))).long() for i, end in enumerate(ends)]
    inside = torch.rand(rows, 1, generator=generator) < rate  # whether a row begins in one
    pairs = torch.where(inside[..., None], torch.stack(sizes[::-1], dim=2), torch.stack(sizes, dim=2))
    borders = pairs.flatten(1).cumsum(dim=1)
    number = torch.searchsorted(borders, torch.arange(length).expand(rows, -1).contiguous(), right=True)
    return (number % 2 == 1) ^ inside


def restore(source: Tensor, target: Tensor, sentinels: Sequence[int]) -> Tensor:
    """Undo `corrupt`: the text without its end."""
    spoken: dict[int, list[int]] = {}
    current: list[int] = []
    for token in target[:-1].tolist():
        if token in sentinels:
            current = spoken.setdefault(token, [])
        else:
            current.append(token)
    whole = [piece for token in source[:-1].tolist() for piece in (spoken[token] if token in sentinels else [token])]
    return torch.tensor(whole, dtype=source.dtype)


def distillation_loss(
    student: Tensor, teacher: Tensor, temperature: float = 2.0, counts: Tensor | None = None
) -> Tensor:
    """How far the student's answers are from the teacher's soft ones (Hinton et al. 2015): the divergence of the two
    at a temperature, times its square, so that the gradient keeps its size. `counts` [...] says which answers do.
    """
    if student.shape != teacher.shape:
        shapes = f"{list(student.shape)} and {list(teacher.shape)}"
        raise InputError(f"The logits of the student and of the teacher have shapes {shapes}; they must be equal.")
    ours, theirs = (F.log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher.detach()))
    each = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1) * temperature**2
    return each.mean() if counts is None else each[counts].sum() / counts.sum().clamp(min=1)
