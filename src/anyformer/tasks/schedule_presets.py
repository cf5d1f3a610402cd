"""Default training schedules, given as a number of epochs."""

from __future__ import annotations

from typing import Any

OFTEN = ("eval_every", "save_every")
SELDOM = 100  # steps: nobody wants a short run looked at all the time


def schedule_for(
    rows: int,
    epochs: int,
    *,
    size: int,
    lr: float,
    least: int = 50,
    most: int | None = None,
    warm: int = 20,
    evals: int | None = None,
    saves: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """`train.*` settings: `epochs` times through the rows, `size` at a time, in `least` to `most` steps. One in `warm`
    of them warms up; `evals` times it is evaluated and `saves` times saved (None: as usual)."""
    steps = max(epochs * rows // size, least)
    steps = steps if most is None else min(steps, most)
    often = {"warmup_steps": warm, "eval_every": evals, "save_every": saves}
    paced = {name: max(steps // times, 1) for name, times in often.items() if times is not None}
    return {"batch_size": size, "steps": steps, "lr": lr, **paced, **more}


def scale_schedule(presets: dict[str, Any], steps: int) -> dict[str, Any]:
    """The same advice for a run of fewer steps than it is for: the warm-up keeps its share of the run, and so do
    evaluations and checkpoints, within reason; a moving average must be much shorter than the run. A longer run needs
    no longer ones."""
    meant = presets["steps"]
    if steps >= meant:
        return presets
    counted = [name for name in ("warmup_steps", *OFTEN) if presets.get(name)]
    scaled = {name: max(round(presets[name] * steps / meant), 1) for name in counted}
    scaled |= {name: max(scaled[name], min(presets[name], SELDOM)) for name in OFTEN if name in scaled}
    memory = 1 / (1 - presets["ema_decay"]) if presets.get("ema_decay") else 0.0
    return {**presets, **scaled, **({"ema_decay": 0.0} if steps < 2 * memory else {})}
