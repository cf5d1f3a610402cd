"""Clips and sets made by formula, where no real data is at hand: which way a blob goes, and which body points lie on.

python benchmarks/synthetic.py FOLDER
anyformer train classify-video --recipe timesformer-tiny --data FOLDER/clips_train.npz --valid FOLDER/clips_val.npz \
    --out OUT --set task.flip=0
anyformer train classify-set --recipe set-transformer-small --data FOLDER/points_train.npz \
    --valid FOLDER/points_val.npz --out OUT
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FRAMES, SIDE = 8, 32
WAYS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
BODIES = ("ball", "sphere", "cube", "cylinder", "torus", "plane")

Rows = NDArray[np.float32]


def clip(way: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A soft blob on noise; no frame alone says which way it goes."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    start, speed, width = rng.uniform(0, SIDE, 2), rng.uniform(1.0, 3.0), rng.uniform(2.0, 4.0)
    colour = rng.uniform(100, 220, 3)
    frames = rng.normal(30, 12, (FRAMES, SIDE, SIDE, 3))
    for i in range(FRAMES):
        middle = (start + np.array(WAYS[way]) * speed * i) % SIDE
        down, along = (
            np.minimum(abs(axis - at), SIDE - abs(axis - at)) for axis, at in ((rows, middle[0]), (columns, middle[1]))
        )
        frames[i] += np.exp(-(down**2 + along**2) / width**2)[..., None] * colour
    return frames.clip(0, 255).astype(np.uint8)


def points(body: str, rng: np.random.Generator) -> Rows:
    """Some hundred points of a body, turned about a random axis, a little off."""
    n = int(rng.integers(60, 140))
    way = rng.normal(size=(n, 3))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    even, angle, other = rng.uniform(-1, 1, (n, 3)), *rng.uniform(0, 2 * np.pi, (2, n))
    if body == "ball":
        found = way * rng.uniform(0, 1, (n, 1)) ** (1 / 3)
    elif body == "sphere":
        found = way
    elif body == "cube":
        found = even / abs(even).max(axis=1, keepdims=True)
    elif body == "cylinder":
        found = np.stack([np.cos(angle), np.sin(angle), even[:, 2]], axis=1)
    elif body == "torus":
        ring = 0.7 + 0.3 * np.cos(other)
        found = np.stack([ring * np.cos(angle), ring * np.sin(angle), 0.3 * np.sin(other)], axis=1)
    else:
        found = np.stack([even[:, 0], even[:, 1], np.zeros(n)], axis=1)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return (found @ turn * rng.uniform(0.7, 1.3) + rng.normal(0, 0.02, (n, 3))).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for split, seed, n in (("train", 0, 1200), ("val", 1, 300)):
        rng = np.random.default_rng(seed)
        ways = [list(WAYS)[i % len(WAYS)] for i in range(n)]
        np.savez(folder / f"clips_{split}.npz", x=np.stack([clip(way, rng) for way in ways]), y=np.array(ways))
        bodies = [BODIES[i % len(BODIES)] for i in range(2 * n)]
        sets = [points(body, rng) for body in bodies]
        ends = np.cumsum([0, *(len(one) for one in sets)])
        np.savez(folder / f"points_{split}.npz", x=np.concatenate(sets), offsets=ends, y=np.array(bodies))
    print(f"{folder}: clips_train.npz, clips_val.npz, points_train.npz, points_val.npz")


if __name__ == "__main__":
    main()
