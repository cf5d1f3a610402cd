"""Writing down speech with Whisper's tiny size, random weights, on the CPU: anyformer beside transformers.

python benchmarks/whisper.py [--tokens 100] [--rounds 5] [--threads 2] [--weights int8]

Same weights, same spectrograms of 30 seconds, greedy and five beams, so many tokens that none ends early; alternating
in one run, medians. "Encoder" is the pass over the spectrogram alone, which both must do; "steps" is the rest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import anyformer as af


def make_both(weights: str | None = None) -> tuple[Any, af.Model]:
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        **{"pad_token_id": 50257, "bos_token_id": 50257, "eos_token_id": 50257, "decoder_start_token_id": 50258}
    )
    theirs = WhisperForConditionalGeneration(config).eval()
    theirs.generation_config = GenerationConfig(
        **{"eos_token_id": 50257, "pad_token_id": 50257, "decoder_start_token_id": 50258},
        **{"suppress_tokens": [50257], "no_timestamps_token_id": 50363},  # never the end
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, af.load(folder, weights=weights)


def clock(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    ours(), theirs()
    times = [(clock(ours), clock(theirs)) for _ in range(rounds)]
    mine, yours = (statistics.median(column) for column in zip(*times, strict=True))
    show(name, mine, yours)
    return mine, yours


def show(name: str, mine: float, yours: float) -> None:
    print(
        f"{name:<28} anyformer {1000 * mine:8.0f} ms   transformers {1000 * yours:8.0f} ms   ratio {yours / mine:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", choices=["int8"], help="ours in 8 bits; theirs stay as they are")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    theirs, ours = make_both(chosen.weights)
    print(f"torch {torch.__version__}, {chosen.threads} threads, {chosen.tokens} tokens, median of {chosen.rounds}")
    for rows, beams in ((1, 1), (1, 5), (8, 1)):
        features = torch.randn(rows, 80, 3000)
        options = {"max_new_tokens": chosen.tokens, "num_beams": beams}
        a, b = ours.generate(features, **options), theirs.generate(features, **options)
        assert a.shape == b.shape == (rows, chosen.tokens), (a.shape, b.shape)
        print(f"the same ids: {float((a == b).float().mean()):.0%}")
        whole = compare(
            f"batch {rows}, beams {beams}",
            lambda f=features, o=options: ours.generate(f, **o),  # type: ignore[misc]
            lambda f=features, o=options: theirs.generate(f, **o),  # type: ignore[misc]
            chosen.rounds,
        )
        with torch.inference_mode():
            encoder = compare(
                f"batch {rows}, encoder",
                lambda f=features: ours.encode(input_features=f),  # type: ignore[misc]
                lambda f=features: theirs.model.encoder(f),  # type: ignore[misc]
                chosen.rounds,
            )
        show(f"batch {rows}, steps alone", *(a - b for a, b in zip(whole, encoder, strict=True)))


if __name__ == "__main__":
    main()
