"""Draw docs/overview.png, the image of the README: answers of three models that ship.

python docs/overview.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import anyformer as af

ROOT = Path(__file__).parents[1]
INPUTS = ROOT / "models" / "notes" / "inputs"
SENTENCE = "A man rides a bicycle in the park."


def main() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", width_ratios=(1.25, 1.3, 1))
    answer = af.task("translate", "en-de")(SENTENCE, alignment=True)
    axes[0].imshow(answer.alignment, cmap="Blues", aspect="auto")
    axes[0].set_xticks(range(len(answer.source_tokens)), answer.source_tokens, rotation=60, ha="right")
    axes[0].set_yticks(range(len(answer.tokens)), answer.tokens)
    axes[1].imshow(af.task("detect", "cells")(INPUTS / "cells.jpg").draw())
    axes[2].imshow(af.task("pose", "faces")(INPUTS / "face.jpg").draw())
    titles = ('af.task("translate", "en-de")', 'af.task("detect", "cells")', 'af.task("pose", "faces")')
    for one, title in zip(axes, titles, strict=True):
        one.set_title(title, family="monospace")
        one.axis("on" if one is axes[0] else "off")
    figure.savefig(ROOT / "docs" / "overview.png", dpi=90)


if __name__ == "__main__":
    main()
