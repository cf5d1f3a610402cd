"""Two versions of anyformer, side by side: the same work in two processes that take turns, in one run.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before .                    # a CPU, one thread, CPU time
    python benchmarks/versions.py ../before . --device cuda      # a GPU, bfloat16, wall time

Each case is built with the same seed in both, and both answers are compared (ids, losses, a checksum of outputs). A
round runs both versions, in alternating order; the table says the median of the rounds' ratios, before / after (above
1: the new one is faster), and between which they lie. `--cases` takes names or parts of them, `--list` shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[[], Any]  # what is timed; its result can be compared
MARK = "@versions "  # begins the lines of a worker's answers


def decode(name: str, rows: int, prompt: int, new: int, device: str, **more: Any) -> Work:
    """Greedy decoding, or beams."""
    import torch

    import anyformer as af

    options = {"eos_token_id": None, "pad_token_id": 0, **more.pop("options", {})}
    model = ready(af.build(name, **more), device)
    ids = torch.randint(5, model.config.vocab_size, (rows, prompt), device=device)
    return lambda: model.generate(ids, max_new_tokens=new, **options).sum().item()


def forward(name: str, batch: Callable[[Any], dict[str, Any]], device: str, optimize: bool = True, **more: Any) -> Work:
    import torch

    import anyformer as af

    model = ready(af.build(name, **more), device)
    model = model.optimize() if optimize else model
    given = {key: value.to(device) for key, value in batch(model).items()}
    given = {key: x.to(model.dtype) if x.is_floating_point() else x for key, x in given.items()}

    def run() -> float:
        with torch.inference_mode():
            return float(model(**given)[0].float().sum())

    return run


def many(device: str) -> Work:
    """Continuous batching: 200 prompts with answers of many lengths."""
    import refill

    import anyformer as af

    model = ready(af.build("gpt2-124m", **refill.SIZES[device]), device)
    prompts = refill.make_prompts(200, model.config.vocab_size)
    return lambda: sum(map(sum, refill.refilled(model, prompts, 32)))


def speech(device: str, name: str, new: int, **options: Any) -> Work:
    import torch

    import anyformer as af

    model = ready(af.build(name), device)
    n_mels, frames = model.config.n_mels, 2 * model.config.source_length
    sound = torch.randn(4, n_mels, frames).to(device, model.dtype)
    more = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": new, **options}
    return lambda: model.generate(input_features=sound, **more).sum().item()


def train(name: str, device: str, batch: Callable[[Any], dict[str, Any]], compiled: bool, **more: Any) -> Work:
    """Steps of the trainer. Its first ones compile, and are not timed."""
    import torch
    from turns import Given

    import anyformer as af
    from anyformer.training.distributed import Devices
    from anyformer.training.settings import TrainSettings
    from anyformer.training.trainer import Trainer

    model = af.build(name, **more)
    precision = "bf16" if device == "cuda" else "float32"
    settings = TrainSettings(
        steps=10**6, lr=1e-4, compile=compiled, precision=precision, device=device, log_every=10**6
    )
    trainer = Trainer(Given(model, [batch(model) for _ in range(4)]), settings, Devices(torch.device(device)))
    model.train()

    def run() -> float:
        for _ in range(20 if device == "cuda" else 2):
            trainer.step()
        return float(sum(parameter.detach().float().sum() for parameter in model.parameters()))

    return run


def ready(model: Any, device: str) -> Any:
    import torch

    model = model.eval().to(device)
    return model.to(torch.bfloat16) if device == "cuda" else model


def text(rows: int, length: int, ragged: bool = False, labels: bool = False) -> Callable[[Any], dict[str, Any]]:
    def make(model: Any) -> dict[str, Any]:
        import torch

        ids = torch.randint(5, model.config.vocab_size, (rows, length))
        lengths = torch.linspace(length / 6, length, rows).long()
        mask = {"attention_mask": (torch.arange(length) < lengths[:, None]).long()} if ragged else {}
        return {"input_ids": ids, **mask, **({"labels": ids} if labels else {})}

    return make


def images(rows: int, labels: bool = False) -> Callable[[Any], dict[str, Any]]:
    def make(model: Any) -> dict[str, Any]:
        import torch

        pixels = torch.randn(rows, 3, 224, 224)
        return {"pixel_values": pixels, **({"labels": torch.arange(rows)} if labels else {})}

    return make


LLAMA = {"n_layers": 12, "d_model": 576, "n_heads": 9, "n_kv_heads": 3, "d_hidden": 1536, "vocab_size": 8192}
GPT = {"n_layers": 4, "d_model": 128, "n_heads": 4, "vocab_size": 256, "max_length": 128}
CPU: dict[str, Callable[[], Work]] = {
    "GPT-2 124M decoding, 1 row": lambda: decode("gpt2-124m", 1, 16, 24, "cpu"),
    "GPT-2 124M decoding, 8 rows": lambda: decode("gpt2-124m", 8, 16, 16, "cpu"),
    "BERT-base, 8 uneven rows": lambda: forward("bert-base", text(8, 120, ragged=True), "cpu"),
    "ViT-B/16, 2 images": lambda: forward("vit-b16", images(2), "cpu"),
    "Llama 12 x 576 decoding, 1 row": lambda: decode("llama-tiny", 1, 16, 48, "cpu", **LLAMA),
    "Transformer 4 x 256, 4 beams": lambda: decode(
        "transformer-tiny", 4, 16, 24, "cpu", n_layers=4, d_model=256, n_heads=4, options={"num_beams": 4}
    ),
    "GPT-2 4 x 128 training step": lambda: train("gpt2-tiny", "cpu", text(16, 128, labels=True), False, **GPT),
    "tiny forward pass": lambda: repeated(forward("gpt2-tiny", text(1, 8), "cpu", optimize=False), 100),
}
GPU: dict[str, Callable[[], Work]] = {
    "GPT-2 124M decoding, 1 row": lambda: decode("gpt2-124m", 1, 16, 200, "cuda"),
    "GPT-2 124M decoding, 64 rows": lambda: decode("gpt2-124m", 64, 16, 200, "cuda"),
    "Llama 12 x 576 decoding, 1 row": lambda: decode("llama-tiny", 1, 16, 200, "cuda", **LLAMA),
    "Transformer-base, 64 rows, 4 beams": lambda: decode(
        "transformer-base", 64, 24, 48, "cuda", options={"num_beams": 4}
    ),
    "Whisper base, 4 rows": lambda: speech("cuda", "whisper-base", 100),
    "Whisper base, 4 rows, 5 beams": lambda: speech("cuda", "whisper-base", 100, num_beams=5),
    "continuous batching": lambda: many("cuda"),
    "GPT-2 124M training, compiled": lambda: train("gpt2-124m", "cuda", text(12, 1024, labels=True), True),
    "ViT-B/16 training, compiled": lambda: train("vit-b16", "cuda", images(128, labels=True), True),
    "BERT-base, 256 uneven rows": lambda: forward("bert-base", text(256, 128, ragged=True), "cuda"),
    "ViT-B/16, 64 images": lambda: forward("vit-b16", images(64), "cuda"),
}


def repeated(work: Work, times: int) -> Work:
    return lambda: [work() for _ in range(times)][-1]


def worker(case: str, device: str, threads: int) -> None:
    """Build the case, and run it each time that a line comes in."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    work = (GPU if device == "cuda" else CPU)[case]()
    work()
    answer({})
    for _ in sys.stdin:
        if device == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter if device == "cuda" else time.process_time
        start = clock()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        answer({"seconds": clock() - start, "result": result})


def answer(value: dict[str, Any]) -> None:
    print(MARK + json.dumps(value), flush=True)


class Version:
    """A checkout, and the process that works with its code."""

    def __init__(self, folder: Path, case: str, device: str, threads: int) -> None:
        ways = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--worker", case, "--device", device, "--threads", str(threads)]
        self.process = subprocess.Popen(command, env=ways, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
        raise RuntimeError("The worker ended; what it said is above.")

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(case: str, folders: list[Path], device: str, threads: int, rounds: int) -> str:
    """One row of the table. The versions are built in turn too: the second one often lies better in memory."""
    ratios, times, same = [], [], True
    for turn in range(2):
        order = folders if turn == 0 else folders[::-1]
        versions = {folder: Version(folder, case, device, threads) for folder in order}
        for i in range(rounds):
            made = {folder: versions[folder].run() for folder in (order if i % 2 == 0 else order[::-1])}
            before, after = (made[folder] for folder in folders)
            ratios.append(before["seconds"] / after["seconds"])
            times.append(after["seconds"])
            same = same and before["result"] == after["result"]
        for version in versions.values():
            version.end()
    now, ratio = 1000 * statistics.median(times), statistics.median(ratios)
    numbers = "equal" if same else "differ"
    return f"| {case} | {now:,.0f} ms | {ratio:.3f} | {min(ratios):.2f} to {max(ratios):.2f} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="two checkouts, the old one first")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="for each of both orders in which they are built")
    parser.add_argument("--cases", nargs="*", default=[""], help="parts of names of cases")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cases = [case for case in (GPU if chosen.device == "cuda" else CPU) if any(part in case for part in chosen.cases)]
    if chosen.worker is not None:
        worker(chosen.worker, chosen.device, chosen.threads)
    elif chosen.list:
        print("\n".join(cases))
    elif len(chosen.folders) != 2:
        parser.error("give two folders: the old version and the new one")
    else:
        folders = [Path(folder).resolve() for folder in chosen.folders]
        print("| case | now | before / now | rounds between | numbers |\n|---|---|---|---|---|", flush=True)
        for case in cases:
            print(compare(case, folders, chosen.device, chosen.threads, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
