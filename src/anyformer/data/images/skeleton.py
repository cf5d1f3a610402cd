"""Names of keypoints, their left-right pairs, and the bones between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FACE = 68  # keypoints of the standard face annotation: jaw, brows, nose, eyes, mouth


@dataclass(frozen=True)
class Skeleton:
    names: tuple[str, ...]
    bones: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, about: Mapping[str, Any], n_joints: int) -> Skeleton:
        """From the file's metadata; for 68 keypoints without names the standard face; else numbers."""
        if about.get("joints"):
            bones = tuple((int(a), int(b)) for a, b in about.get("bones", ()))
            return cls(tuple(str(name) for name in about["joints"]), bones)
        if n_joints == FACE:
            return face()
        return cls(tuple(f"point_{i + 1}" for i in range(n_joints)))

    @property
    def flip_indices(self) -> list[int] | None:
        """The index of each keypoint's mirror image; None if the names have no left and right."""
        index = {name: i for i, name in enumerate(self.names)}
        found = [index.get(other_side(name), i) for i, name in enumerate(self.names)]
        return found if found != list(range(len(self.names))) else None

    def find(self, *names: str) -> int | None:
        """The first keypoint with one of these names, ignoring case and separators."""
        plain = [re.sub(r"[^a-z]", "", name.lower()) for name in self.names]
        return next((plain.index(name) for name in names if name in plain), None)


def other_side(name: str) -> str:
    """left_ankle -> right_ankle, R-Eye -> L-Eye"""
    turned = re.sub(r"left|right", lambda found: _other(found.group()), name, flags=re.IGNORECASE)
    if turned != name:
        return turned
    return re.sub(r"(?<![A-Za-z])[lrLR](?![a-z])", lambda found: _other(found.group()), name)


def _other(side: str) -> str:
    pairs = {"left": "right", "right": "left", "l": "r", "r": "l"}
    other = pairs[side.lower()]
    return other.upper() if side.isupper() else other.capitalize() if side[0].isupper() else other


def face() -> Skeleton:
    """The 68 keypoints (Sagonas et al. 2013), starting at the person's right, which is the image's left."""
    names = [""] * FACE
    _sides(names, "jaw", range(17))
    _sides(names, "brow", range(17, 27))
    names[27:31] = [f"nose_bridge_{i}" for i in range(1, 5)]
    _sides(names, "nostril", range(31, 36))
    eyes = ("outer", "upper_outer", "upper_inner", "inner", "lower_inner", "lower_outer")
    for i, part in enumerate(eyes):
        names[36 + i] = f"right_eye_{part}"
        names[42 + (9 - i) % 6] = f"left_eye_{part}"  # counted from the nose
    _sides(names, "upper_lip", range(48, 55))
    _sides(names, "lower_lip", range(59, 54, -1))
    _sides(names, "upper_mouth", range(60, 65))
    _sides(names, "lower_mouth", range(67, 64, -1))
    lines = [range(17), range(17, 22), range(22, 27), range(27, 31), range(31, 36)]
    rings = [range(36, 42), range(42, 48), range(48, 60), range(60, 68)]
    bones = [(i, i + 1) for line in (*lines, *rings) for i in line[:-1]]
    return Skeleton(tuple(names), tuple(bones + [(ring[-1], ring[0]) for ring in rings]))


def _sides(names: list[str], part: str, indices: Sequence[int]) -> None:
    """Name pairs of mirrored keypoints from both ends to the middle."""
    for i in range(len(indices) // 2):
        names[indices[i]], names[indices[-1 - i]] = f"right_{part}_{i + 1}", f"left_{part}_{i + 1}"
    if len(indices) % 2:
        names[indices[len(indices) // 2]] = f"{part}_middle"
