"""Clips with classes: from folders of frames, arrays and files; learned by heart; and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.video.clips import Clip, decode, evenly_spaced, read_clips
from anyformer.tasks import TASKS, find
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.classify_video import ClassifyVideo, ClassifyVideoOptions, ClipAugmentation, augment_clips
from anyformer.training.dotted_keys import flatten
from tests.tasks.test_sounds import learn
from tests.training.clip_files import clip, npz

STILL = ClassifyVideoOptions(augment=ClipAugmentation(flip=0.0, shift=0.0))


@pytest.mark.parametrize("recipe", ["timesformer-tiny", "videomae-tiny"])
def test_learned_by_heart(recipe: str, tmp_path: Path) -> None:
    """Which way something goes shows in no frame alone."""
    torch.manual_seed(0)
    (tmp_path / "x.npz").write_bytes(npz(8))
    kind = find("classify-video")
    rows = kind.read(tmp_path / "x.npz")
    task: Any = kind.begin(recipe, rows, setup=TaskSetup(task=STILL))
    assert task.labels == ("down", "right")
    learn(task, rows, 80, 1e-3)
    assert task.evaluate(rows)["accuracy"] == 1.0
    task.save(tmp_path / "model")
    again = af.task("classify-video", tmp_path / "model")
    assert [answer.label for answer in again([clip("right"), clip("down")])] == ["right", "down"]


def test_folders_of_frames(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for way in ("down", "right"):
        for i in range(2):
            home = tmp_path / "data" / way / f"clip{i}"
            home.mkdir(parents=True)
            for n, frame in enumerate(clip(way)):
                image.fromarray(frame).save(home / f"{n:03}.png")
    rows = read_clips(tmp_path / "data")
    assert [row["label"] for row in rows] == ["down", "down", "right", "right"]
    frames = rows[2]["clip"].take(3)
    for frame, place in zip(frames, (1, 3, 5), strict=True):
        assert np.array_equal(np.asarray(frame), clip("right")[place])
    (tmp_path / "list.tsv").write_text("clip\tlabel\ndata/down/clip0\tx\ndata/right/clip1\ty\n")
    assert [row["label"] for row in read_clips(tmp_path / "list.tsv")] == ["x", "y"]
    (tmp_path / "list.tsv").write_text("clip\tlabel\ndata/down/clip0\tx\ndata/right/clip1\tnan\n")
    with pytest.raises(af.DataError, match=r"list\.tsv, line 3"):  # a class of a table is checked as any other is
        ClassifyVideo.find_labels(ClassifyVideo.read(tmp_path / "list.tsv"), TaskSetup())


def test_video_file(tmp_path: Path) -> None:
    """Through PyAV, a codec that loses nothing."""
    av = pytest.importorskip("av")
    path = tmp_path / "x.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "bgr0"
        for frame in clip("right"):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    frames = decode(path, 6)
    assert np.array_equal(np.stack(frames), clip("right"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(af.Error, match=r"x\.mkv"):
        decode(path, 2)


def test_spread() -> None:
    assert (
        evenly_spaced(8, 4) == [1, 3, 5, 7] and evenly_spaced(2, 4) == [0, 0, 1, 1] and evenly_spaced(1, 3) == [0, 0, 0]
    )


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(af.Error, match=r"empty .*frames"):
        Clip.of(tmp_path / "empty").take(2)
    with pytest.raises(af.Error, match=r"gone\.mp4"):
        Clip.of(tmp_path / "gone.mp4").take(2)
    with pytest.raises(af.Error, match="list of frames"):
        Clip.of([])
    np.savez(tmp_path / "none.npz", x=np.zeros((3, 0, 8, 8, 3), dtype=np.uint8))
    with pytest.raises(af.Error, match="clips without frames"):
        read_clips(tmp_path / "none.npz")
    (tmp_path / "list.tsv").write_text("clip\tlabel\ngone\tx\n")
    with pytest.raises(af.Error, match=r'list\.tsv, line 2, names the clip "gone"'):
        read_clips(tmp_path / "list.tsv")
    (tmp_path / "classes" / "a").mkdir(parents=True)
    with pytest.raises(af.Error, match=r"class folder .*/a "):
        read_clips(tmp_path / "classes")


def test_moved_alike() -> None:
    """Every frame of a clip goes the same way."""
    clips = torch.arange(2 * 3 * 1 * 8 * 8).view(2, 3, 1, 8, 8).to(torch.uint8)
    made = augment_clips(clips, ClipAugmentation(flip=1.0, shift=0.0), torch.Generator())
    assert torch.equal(made, clips.flip(-1))
    made = augment_clips(clips, ClipAugmentation(flip=0.0, shift=0.3), torch.Generator().manual_seed(1))
    for one, before in zip(made, clips, strict=True):
        ways = [(d, a) for d in range(-2, 3) for a in range(-2, 3) if torch.equal(before.roll((d, a), (-2, -1)), one)]
        assert len(ways) == 1


def test_left_stays_left(tmp_path: Path) -> None:
    """Unless asked for, no training batch is mirrored: a clip that goes right never teaches what goes left."""
    (tmp_path / "x.npz").write_bytes(npz(8))
    kind = find("classify-video")
    rows = kind.read(tmp_path / "x.npz")
    asked: Any = {"augment": ClipAugmentation(flip=1.0, shift=0.0)}
    plain, mirrored = (
        kind.begin("timesformer-tiny", rows, setup=TaskSetup(task=ClassifyVideoOptions(**options)))
        for options in ({"augment": ClipAugmentation(shift=0.0)}, asked)
    )
    batch = plain.collate([plain.example(row) for row in rows], torch.Generator())
    for seed in range(8):
        made = plain.ready(batch, torch.Generator().manual_seed(seed))["pixel_values"]
        assert torch.equal(made, plain.ready(batch, None)["pixel_values"])
    turned = mirrored.ready(batch, torch.Generator())["pixel_values"]
    assert torch.equal(turned, made.flip(-1)) and not torch.equal(turned, made)
    assert ClassifyVideoOptions().augment.flip == 0.0


@pytest.mark.parametrize("name", ["caption", "match", "ask-image", "complete-image", "read", "classify-video"])
def test_what_texts_call_left_stays_left(name: str) -> None:
    """Nothing is mirrored unless the user asks for it."""
    kind = find(name).options_class
    assert kind().augment.flip == 0
    assert kind.from_json({"augment": {"flip": 0.5}}).augment.flip == 0.5


def test_one_name_for_the_flip() -> None:
    """task.augment.flip in every task that may mirror its input; an old name is a mistake that says so."""
    found = {name: flatten({"task": find(name).options_class()}) for name in TASKS}
    flips = {name: [key for key in keys if key.endswith("flip")] for name, keys in found.items()}
    assert {key for keys in flips.values() for key in keys} == {"task.augment.flip"} and flips["classify-video"]
    with pytest.raises(af.ConfigError, match="flip is 2;"):
        ClipAugmentation(flip=2)


def test_videomae_folder(tmp_path: Path) -> None:
    """A published folder: frames as its own processor prepares them, scores as its own class gives them."""
    processing = pytest.importorskip("transformers.models.videomae.image_processing_pil_videomae")
    from tests.checkpoints.oracles import make_oracle

    oracle = make_oracle("VideoMAEForVideoClassification", id2label={0: "down", 1: "right"})
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    processor = processing.VideoMAEImageProcessorPil(**size)
    oracle.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    frames = [clip("right")[i] for i in evenly_spaced(6, 4)]
    with torch.no_grad():
        pixels = processor(frames, return_tensors="pt")["pixel_values"]
        theirs = oracle(pixel_values=pixels).logits.softmax(dim=-1)[0].tolist()
    task: Any = af.task("classify-video", tmp_path)
    ours = task.reader.normalize(task.reader.frames(Clip.of(clip("right")))[None])
    torch.testing.assert_close(ours, pixels, atol=1e-6, rtol=0)
    assert task(clip("right")).scores == pytest.approx({"down": theirs[0], "right": theirs[1]}, abs=1e-5)
