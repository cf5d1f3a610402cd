"""Diverse beam groups against the paper written out in plain Python: no library has them any more."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import anyformer as af

PAD, PROMPT = 0, 4


class Said(NamedTuple):
    score: float
    ids: tuple[int, ...]


class Group:
    """The beams of one group, and those of its searches that ended."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.running = [Said(0.0, prompt)]
        self.ends: list[Said] = []
        self.over = False


def diverse_beams(
    model: af.Model,
    prompt: tuple[int, ...],
    *,
    beams: int,
    groups: int,
    penalty: float,
    steps: int,
    ends: tuple[int, ...] = (),
    length_penalty: float = 1.0,
) -> list[list[int]]:
    """Vijayakumar et al. 2018, algorithm 1: everything is computed anew for every beam at every step."""
    teams = [Group(prompt) for _ in range(groups)]
    for step in range(1, steps + 1):
        used: Counter[int] = Counter()
        for team in teams:
            go_on(team, next_logs(model, team.running), used, beams // groups, penalty, step, ends, length_penalty)
            last = step == steps
            if last and not team.over:
                keep(team, [Said(s.score / step**length_penalty, s.ids) for s in team.running], beams // groups)
            if not team.over:
                used.update(said.ids[-1] for said in team.running)
            full = len(team.ends) == beams // groups
            team.over |= full and team.running[0].score / step**length_penalty <= team.ends[-1].score
    everyone = [said for team in teams for said in team.ends]
    return [list(said.ids) for said in sorted(everyone, key=lambda said: -said.score)]


def next_logs(model: af.Model, running: list[Said]) -> list[list[float]]:
    rows = torch.tensor([said.ids for said in running])
    with torch.no_grad():
        found: list[list[float]] = model(input_ids=rows).logits[:, -1].log_softmax(-1).tolist()
    return found


def go_on(
    team: Group,
    logs: list[list[float]],
    used: Counter[int],
    width: int,
    penalty: float,
    step: int,
    ends: tuple[int, ...],
    length_penalty: float,
) -> None:
    candidates = [
        Said(said.score + log - penalty * used[token], (*said.ids, token))
        for said, row in zip(team.running, logs, strict=True)
        for token, log in enumerate(row)
    ]
    candidates.sort(key=lambda said: -said.score)
    ended = [said for said in candidates[:width] if said.ids[-1] in ends]
    if not team.over:
        keep(team, [Said(said.score / step**length_penalty, said.ids) for said in ended], width)
    team.running = [said for said in candidates if said.ids[-1] not in ends][:width]


def keep(team: Group, more: list[Said], width: int) -> None:
    team.ends = sorted([*team.ends, *more], key=lambda said: -said.score)[:width]


def small_model(seed: int) -> af.Model:
    torch.manual_seed(seed)
    model = af.build("gpt2-tiny", n_layers=1, vocab_size=23, max_length=32).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.dim() > 1 else 1.0)  # so that the beams differ
    return model


def prompts(seed: int, rows: int = 3) -> Tensor:
    return torch.randint(1, 23, (rows, PROMPT), generator=torch.Generator().manual_seed(seed))


CASES: list[dict[str, Any]] = [
    {"beams": 4, "groups": 2, "penalty": 0.5},
    {"beams": 4, "groups": 4, "penalty": 2.0},
    {"beams": 6, "groups": 3, "penalty": 10.0},
    {"beams": 6, "groups": 2, "penalty": 1.0, "ends": (3, 4)},
    {"beams": 6, "groups": 3, "penalty": 1.0, "ends": (3, 4, 5, 6, 7), "length_penalty": 0.0},
    {"beams": 4, "groups": 2, "penalty": 0.3, "ends": (3, 4, 5, 6, 7), "length_penalty": 2.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_ids_are_the_papers(case: dict[str, Any]) -> None:
    differ = 0
    for seed in range(12):
        model, ids = small_model(seed), prompts(seed)
        options = search(case)
        found = model.generate(ids, **options)
        expected = [row for prompt in ids.tolist() for row in diverse_beams(model, tuple(prompt), steps=7, **case)]
        assert [strip(row) for row in found.tolist()] == [strip(row) for row in expected], seed
        plain = {name: value for name, value in options.items() if name not in ("num_beam_groups", "diversity_penalty")}
        differ += found.tolist() != model.generate(ids, **plain).tolist()
    assert differ > 6, "groups that change nothing would test nothing"


def search(case: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "num_beams": case["beams"],
        "num_beam_groups": case["groups"],
        "diversity_penalty": case["penalty"],
        "num_return_sequences": case["beams"],
        "length_penalty": case.get("length_penalty", 1.0),
        "eos_token_id": list(case.get("ends", ())) or None,
        "pad_token_id": PAD,
        "max_new_tokens": 7,
        **more,
    }


def strip(row: list[int]) -> list[int]:
    """Without the padding at the end."""
    while row and row[-1] == PAD:
        row = row[:-1]
    return row


def test_one_group_is_plain_beam_search() -> None:
    model, ids = small_model(1), prompts(1)
    plain = model.generate(ids, num_beams=4, num_return_sequences=4, max_new_tokens=7, eos_token_id=[3, 4])
    grouped = model.generate(
        ids, num_beams=4, num_beam_groups=1, num_return_sequences=4, max_new_tokens=7, eos_token_id=[3, 4]
    )
    assert grouped.tolist() == plain.tolist()


def test_the_first_group_searches_as_if_it_were_alone() -> None:
    """It is punished for nothing, so a search by its beams alone finds the same."""
    for seed in range(6):
        model, ids = small_model(seed), prompts(seed)
        alone = model.generate(ids, num_beams=2, num_return_sequences=2, max_new_tokens=7, eos_token_id=None)
        case = {"beams": 6, "groups": 3, "penalty": 1.5}
        together = model.generate(ids, **search(case)).view(len(ids), 6, -1).tolist()
        for row, rows in zip(alone.view(len(ids), 2, -1).tolist(), together, strict=True):
            assert all(said in rows for said in row)


def test_diversity_rises_with_the_penalty() -> None:
    """Distinct new tokens among all that the beams of a prompt say."""

    def distinct(penalty: float) -> int:
        total = 0
        for seed in range(8):
            model, ids = small_model(seed), prompts(seed)
            new = model.generate(ids, **search({"beams": 6, "groups": 3, "penalty": penalty}))[:, PROMPT:]
            total += sum(len(set(row.flatten().tolist())) for row in new.view(len(ids), 6, -1))
        return total

    counts = [distinct(penalty) for penalty in (0.01, 1.0, 4.0, 20.0)]
    assert counts == sorted(counts) and counts[-1] > 1.3 * counts[0]


def test_a_batch_is_its_rows() -> None:
    case = {"beams": 4, "groups": 2, "penalty": 1.0, "ends": (3, 4, 5)}
    model, ids = small_model(2), prompts(2, rows=5)
    together = model.generate(ids, **search(case)).view(5, 4, -1).tolist()
    for row in range(5):
        alone = model.generate(ids[row : row + 1], **search(case)).tolist()
        assert [strip(said) for said in alone] == [strip(said) for said in together[row]]
