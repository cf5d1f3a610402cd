"""python -m tests.fuzz --seconds 60"""

from __future__ import annotations

import argparse
import sys

import torch

from tests.fuzz import __doc__ as about
from tests.fuzz.campaign import Campaign, replay
from tests.fuzz.targets import every


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--mutations", type=int, help="stop after so many mutations (default: go on for ever)")
    parser.add_argument("--seed", type=int, default=0, help="other mutations")
    parser.add_argument("--first", type=int, default=0, help="number of each target's first mutation")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", default=[], help="targets whose names begin so")
    parser.add_argument("--quick", action="store_true", help="the targets of the test suite")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--replay", metavar="TARGET:SEED:NUMBER", help="one mutation again, with its traceback")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    targets = every()
    if chosen.replay:
        name, seed, number = chosen.replay.rsplit(":", 2)
        campaign = Campaign([targets[name]], int(seed))
        try:
            return int(bool(replay(campaign, name, int(number)).problem))
        finally:
            campaign.close()
    some = [
        target
        for name, target in targets.items()
        if (not chosen.only or name.startswith(tuple(chosen.only))) and (target.quick or not chosen.quick)
    ]
    if chosen.list:
        print("\n".join(target.name for target in some))
        return 0
    campaign = Campaign(some, chosen.seed)
    try:
        report = campaign.go(chosen.seconds, chosen.mutations, chosen.jobs, chosen.first)
        print(report.text())
        return int(bool(report.problems))
    finally:
        campaign.close()


if __name__ == "__main__":
    sys.exit(main())
