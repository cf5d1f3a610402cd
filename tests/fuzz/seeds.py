"""Valid files to begin with, all made here: model folders, vocabularies, GGUF files and data."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyformer as af
from tests.training import clip_files, picture_files, sound_files

Files = Mapping[str, bytes]
WORDS = "cat dog cow bee ant hen fox owl".split()
TEXTS = [f"the {word} sat on the mat" for word in WORDS]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
PICTURE = picture_files.square((200, 40, 40), 5)


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# Vocabularies.


@cache
def tokenizer(kind: Any = "bpe", **options: Any) -> af.Tokenizer:
    return af.Tokenizer.train(iter(TEXTS * 2), kind=kind, vocab_size=290, progress=False, **options)


def sentencepiece(kind: int = 1) -> bytes:
    """A SentencePiece model in its own format: pieces with scores, the kind (1 Unigram, 2 BPE), the normalization."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    plain = [
        (piece, -float(i), 1) for i, piece in enumerate(["▁", "▁the", "▁cat", "s", "a", "t", "at", "▁s", "he", "e"])
    ]
    pieces = b"".join(_field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind_]))
                      for text, score, kind_ in (*special, *plain))  # fmt: skip
    return pieces + _field(2, bytes([0x18, kind])) + _field(3, _field(1, b"identity"))


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def vocabularies() -> dict[str, Files]:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "m", "##at"]
    bpe = {"<|endoftext|>": 0, **{letter: i + 1 for i, letter in enumerate("Ġthecasonm")}, "th": 11, "the": 12}
    ranks = b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
    merges = b"#version: 0.2\nt h\nth e\n"
    marian = {"<pad>": 3, "<unk>": 0, "</s>": 2, "▁the": 4, "▁cat": 5, "s": 6, "▁": 7}
    config = {"unk_token": "<unk>", "eos_token": "</s>", "model_max_length": 10**30, "tokenizer_class": "T5Tokenizer"}
    return {
        "wordpiece": {"vocab.txt": "\n".join(pieces).encode(), "tokenizer_config.json": _json({"do_lower_case": True})},
        "merges": {"vocab.json": _json(bpe), "merges.txt": merges, "added_tokens.json": _json({"<x>": 13})},
        "unigram": {"spiece.model": sentencepiece(), "tokenizer_config.json": _json({**config, "extra_ids": 4})},
        "pieces-bpe": {"tokenizer.model": sentencepiece(2), "special_tokens_map.json": _json({"bos_token": "<s>"})},
        "ranks": {"cl100k_base.tiktoken": ranks},
        "marian": {"source.spm": sentencepiece(), "target.spm": sentencepiece(), "vocab.json": _json(marian)},
    }  # fmt: skip


# Models.


def save_own(recipe: str, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: _build(recipe, changes).save(folder)


def save_hf(recipe: str, **changes: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        model = _build(recipe, changes)
        if "language" in model.heads:
            model.origin.generation = {"max_new_tokens": 3, "num_beams": 2, "do_sample": False, "eos_token_id": 1}
        model.save(folder, format="hf")

    return make


def _build(recipe: str, changes: Mapping[str, Any]) -> af.Model:
    torch.manual_seed(0)
    return af.build(recipe, **changes).eval()


def sharded(folder: Path) -> None:
    """Weights in two files with an index, a tokenizer with a chat template, a card, and what generation begins with."""
    from safetensors.torch import load_file, save_file

    words = tokenizer()
    save_hf("gpt2-tiny", vocab_size=len(words))(folder)
    words.save(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    write(
        folder, {"model.safetensors.index.json": _json({"metadata": {}, "weight_map": files}), "README.md": b"# A card"}
    )


def torch_shards(folder: Path) -> None:
    """Weights in two files of torch.save, with an index."""
    from safetensors.torch import load_file

    sharded(folder)
    (folder / "model.safetensors.index.json").unlink()
    names: dict[str, str] = {}
    for i, file in enumerate(sorted(folder.glob("*.safetensors"))):
        tensors = load_file(file)
        torch.save(tensors, folder / f"pytorch_model-{i}.bin")
        names |= dict.fromkeys(tensors, f"pytorch_model-{i}.bin")
        file.unlink()
    write(folder, {"pytorch_model.bin.index.json": _json({"weight_map": names})})


def whisper(folder: Path) -> None:
    """A file as OpenAI publishes them, with the settings of whisper-tiny but for the width and the vocabulary."""
    dims = {"n_mels": 16, "n_audio_ctx": 32, "n_audio_state": 8, "n_audio_head": 2, "n_audio_layer": 1,
            "n_vocab": 51864, "n_text_ctx": 24, "n_text_state": 8, "n_text_head": 2, "n_text_layer": 1}  # fmt: skip
    square, narrow = (8, 8), (8,)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (8, 16, 3), "encoder.conv1.bias": narrow, "encoder.conv2.weight": (8, 8, 3),
        "encoder.conv2.bias": narrow, "encoder.positional_embedding": (32, 8), "encoder.ln_post.weight": narrow,
        "encoder.ln_post.bias": narrow, "decoder.token_embedding.weight": (51864, 8), "decoder.ln.weight": narrow,
        "decoder.ln.bias": narrow, "decoder.positional_embedding": (24, 8),
    }  # fmt: skip
    for block, kinds in (("encoder.blocks.0", ("attn",)), ("decoder.blocks.0", ("attn", "cross_attn"))):
        for kind in kinds:
            shapes |= {f"{block}.{kind}.{role}.weight": square for role in ("query", "key", "value", "out")}
            shapes |= {f"{block}.{kind}.{role}.bias": narrow for role in ("query", "value", "out")}
            shapes |= {f"{block}.{kind}_ln.{end}": narrow for end in ("weight", "bias")}
        shapes |= {f"{block}.mlp_ln.{end}": narrow for end in ("weight", "bias")}
        shapes |= {f"{block}.mlp.0.weight": (32, 8), f"{block}.mlp.2.weight": (8, 32)}
        shapes |= {f"{block}.mlp.0.bias": (32,), f"{block}.mlp.2.bias": narrow}
    state = {name: torch.randn(shape).half() for name, shape in shapes.items()}
    torch.save({"dims": dims, "model_state_dict": state}, folder / "tiny.pt")


def sentences(folder: Path) -> None:
    """As sentence-transformers writes a model: modules.json, the pooling beside it."""
    words = tokenizer("wordpiece", bert=True)
    save_hf("bert-tiny", vocab_size=len(words), head="base")(folder)
    words.save(folder)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])
    ]
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    limit = {"max_seq_length": 32, "do_lower_case": False}
    write(folder, {"modules.json": _json(modules), "1_Pooling/config.json": _json(pooling),
                   "sentence_bert_config.json": _json(limit)})  # fmt: skip


def adapter(folder: Path, base: Path) -> None:
    from anyformer.checkpoints.peft import save_adapter
    from anyformer.core.lora import add_lora

    model = _build("gpt2-tiny", {})
    add_lora(model, 2, 4.0, ["*.self.qkv"])
    save_own("gpt2-tiny")(base)
    save_adapter(model, folder, str(base))


def difference(folder: Path, base: Path) -> None:
    """A classifier as what differs from its base: thin matrices, one in steps, a head that is whole."""
    from anyformer.checkpoints import delta as parts
    from anyformer.checkpoints.files import write_tensors
    from anyformer.checkpoints.folder import own_config
    from anyformer.core.lora import add_lora, lora_layers, merge_lora
    from anyformer.tasks.build import with_head

    save_own("bert-tiny", head="base")(base)
    model = with_head(af.load(base), False, head="classify", n_labels=3)
    add_lora(model, 2, 4.0, ["*.self.*"])
    with torch.no_grad():
        for _, _, adapter in lora_layers(model):
            adapter.b.normal_()
        merge_lora(model)
        parts.own_tensors(model)["encoder.blocks.1.feedforward.up.weight"].normal_()
    found = parts.compute_delta(model, af.load(base))
    write_tensors(folder, {name: tensor.contiguous().clone() for name, tensor in found.items()})
    write(folder, {"config.json": _json({**own_config(model), "base": str(base)})})


def gguf(folder: Path) -> None:
    """A llama of two layers with a vocabulary of 32 tokens."""
    from gguf import GGUFWriter

    random = np.random.default_rng(0)
    width, hidden, size = 16, 24, 32
    writer = GGUFWriter(folder / "x.gguf", "llama")
    for add, value in {"block_count": 2, "context_length": 64, "embedding_length": width, "feed_forward_length": hidden,
                       "head_count": 4, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 1e4,
                       "rope_dimension_count": 4, "vocab_size": size, "tokenizer_model": "llama", "eos_token_id": 2,
                       "bos_token_id": 1, "chat_template": TEMPLATE}.items():  # fmt: skip
        getattr(writer, f"add_{add}")(value)
    words = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁cat", *(f"<0x{i:02X}>" for i in range(size - 6))]
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(size)])
    writer.add_token_types([2, 3, 3, 1, 1, 1, *[6] * (size - 6)])
    shapes = {"token_embd": (size, width), "output_norm": (width,), "output": (size, width)}
    for i in range(2):
        layer = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (8, width),
                 "attn_v": (8, width), "attn_output": (width, width), "ffn_gate": (hidden, width),
                 "ffn_up": (hidden, width), "ffn_down": (width, hidden)}  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Data.


def lines(*rows: Mapping[str, Any]) -> bytes:
    return b"".join(_json(row) + b"\n" for row in rows)


def squad() -> bytes:
    paragraphs = [
        {
            "context": text,
            "qas": [{"id": str(i), "question": "who sat", "answers": [{"text": word, "answer_start": 4}]}],
        }
        for i, (word, text) in enumerate(zip(WORDS, TEXTS, strict=True))
    ]
    return _json({"data": [{"title": "animals", "paragraphs": paragraphs}]})


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), stream)
    return stream.getvalue()


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def encoded_sounds() -> Files:
    """One tone in every format that soundfile writes here, and a table of them."""
    import soundfile

    wave = np.sin(np.arange(2400) / 4).astype(np.float32)
    found = {"a.wav": sound_files.tone(300), "b.wav": sound_files.tone(1500)}
    for name, kind in {"c.flac": "FLAC", "d.ogg": "OGG", "e.mp3": "MP3", "f.aiff": "AIFF"}.items():
        stream = io.BytesIO()
        soundfile.write(stream, wave, 8000, format=kind)
        found[name] = stream.getvalue()
    table = "file\tlabel\ttext\n" + "".join(
        f"{name}\t{'low' if i % 2 else 'high'}\tone\n" for i, name in enumerate(found)
    )
    return {**found, "x.tsv": table.encode()}


def video() -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("mpeg4", rate=8)
        track.width = track.height = 32
        track.pix_fmt = "yuv420p"
        for frame in clip_files.clip("right"):
            for packet in track.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in track.encode():
            container.mux(packet)
    return stream.getvalue()


def pictures() -> Files:
    """Class folders of images, in every format that is read."""
    kinds = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "PPM": "ppm"}
    found: dict[str, bytes] = {}
    for i, (kind, suffix) in enumerate(kinds.items()):
        found[f"red/{i}.{suffix}"] = picture_files.encode(PICTURE, kind)
        found[f"blue/{i}.{suffix}"] = picture_files.encode(picture_files.square((40, 40, 200), i), kind)
    return found


TABLE = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(TEXTS)]
PAIRS = "source\ttarget\n" + "".join(f"one {word}\tein {word}\n" for word in WORDS[:4])
TSV = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in TABLE)
ROWS = "size,color,label\n" + "".join(f"{i % 5},{'rgb'[i % 3]},{'ab'[i % 2]}\n" for i in range(12))
CONLL = "".join(f"we O\nask O\n{word} B-PER\n\n" for word in WORDS)
SMALL = {"tokenizer.vocab_size": 290}


def numbered(count: int = 6) -> bytes:
    """Images packed as files in one array, with labels by number."""
    packed = [picture_files.encode(picture_files.square((200, 40, 40), i)) for i in range(count)]
    ends = np.cumsum([0, *map(len, packed)])
    whole = np.frombuffer(b"".join(packed), dtype=np.uint8)
    return npz(png=whole, offsets=ends, y=np.arange(count) % 2, classes=np.array(["red", "blue"]))


def points(count: int = 8) -> bytes:
    random = np.random.default_rng(0)
    return npz(x=random.standard_normal((count, 5, 3)).astype(np.float32), y=np.arange(count) % 2)


@cache
def data() -> dict[str, tuple[str, str, str, Files, dict[str, Any]]]:
    """Target -> task, recipe, the file that is given, all files, settings of training."""
    coco, captions, read = picture_files.coco(6), picture_files.captioned(6), picture_files.lines(6)
    zipped = picture_files.zipped(
        {f"{'red' if i % 2 else 'blue'}/{i}.png": picture_files.encode(PICTURE) for i in range(6)}
    )
    classify = ("classify-text", "bert-tiny")
    twice = lines(*({"first": text, "second": text} for text in TEXTS))
    videos = {f"{label}/{i}.mp4": video() for label in "ab" for i in "12"}
    small = {"tokenizer.vocab_size": 120}
    return {
        "tsv": (*classify, "x.tsv", {"x.tsv": TSV.encode()}, small),
        "csv": (*classify, "x.csv", {"x.csv": TSV.replace("\t", ",").encode()}, small),
        "jsonl": (*classify, "x.jsonl", {"x.jsonl": lines(*TABLE)}, small),
        "json": (*classify, "x.json", {"x.json": _json(TABLE)}, small),
        "parquet": (*classify, "x.parquet", {"x.parquet": parquet(TABLE)}, small),
        "gz": (*classify, "x.tsv.gz", {"x.tsv.gz": gzip.compress(TSV.encode())}, small),
        "tag": ("tag", "bert-tiny", "x.conll", {"x.conll": CONLL.encode()}, small),
        "squad": ("answer", "bert-tiny", "x.json", {"x.json": squad()}, small),
        "pairs": ("translate", "transformer-tiny", "x.tsv", {"x.tsv": PAIRS.encode()}, SMALL),
        "embed": ("embed", "bert-tiny", "x.jsonl", {"x.jsonl": twice}, small),
        "table": ("classify-set", "ft-transformer-tiny", "x.csv", {"x.csv": ROWS.encode()}, {}),
        "points": ("classify-set", "set-transformer-tiny", "x.npz", {"x.npz": points()}, {}),
        "pictures": ("classify-image", "vit-tiny", ".", pictures(), {}),
        "picture-zip": ("classify-image", "vit-tiny", "x.zip", {"x.zip": zipped}, {}),
        "picture-npz": ("classify-image", "vit-tiny", "x.npz", {"x.npz": picture_files.npz(6)}, {}),
        "packed-npz": ("classify-image", "vit-tiny", "x.npz", {"x.npz": numbered()}, {}),
        "coco": ("detect", "detr-tiny", "x.json", coco, {}),
        "coco-joints": ("pose", "keypoint-detr-tiny", "x.json", coco, {}),
        "coco-outlines": ("segment", "segmenter-tiny", "x.json", coco, {}),
        "captions": ("match", "clip-tiny", "x.json", captions, SMALL),
        "lines": ("read", "line-reader-tiny", "x.tsv", read, {"task.max_target_length": 4}),
        "sounds": ("classify-audio", "ast-tiny", "x.tsv", encoded_sounds(), {}),
        "sound-zip": ("classify-audio", "ast-tiny", "x.tsv", sound_files.spoken(6), {}),
        "clips": ("classify-video", "timesformer-tiny", "x.npz", {"x.npz": clip_files.npz(4)}, {}),
        "videos": ("classify-video", "timesformer-tiny", ".", videos, {}),
    }  # fmt: skip
