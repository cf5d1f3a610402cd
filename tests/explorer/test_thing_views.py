"""Clips, sets, tables, latents, keypoints, segments, slots: against what `af.look` sees, NumPy, and the tasks' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="images take Pillow")

import anyformer as af
from anyformer.explorer import sample_inputs, uploads
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.plot_queries import size_colors
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import query_boxes
from tests.explorer.models import audio_file, image_file, unpack, view
from tests.explorer.things import COLUMNS, as_text, frames, frames_zip, npz, save_things

Models = dict[str, LoadedModel]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("things")
    save_things(root)
    return {path.name: LoadedModel.load(path) for path in root.iterdir()}


def seen(one: LoadedModel, *points: str, **asked: Any) -> Any:
    batch = one.model_input(ViewRequest(**asked), Deadline(60)).batch
    with torch.no_grad(), af.look(one.model, *points) as found:
        one.model(**batch)
    return found


def close(drawn: Any, wanted: torch.Tensor, atol: float = 3e-5) -> None:
    torch.testing.assert_close(unpack(drawn), wanted.double(), atol=atol, rtol=0)


def test_a_tube_of_a_clip_looks_at_all_frames(things: Models) -> None:
    one = things["videomae"]
    got = view(one, "input")
    times, rows, columns = got["shape"]
    assert (got["kind"], len(got["images"]) // got["each"]) == ("clip", times)
    weights = seen(one, "encoder.blocks.1.self.weights")["encoder.blocks.1.self.weights"][0]
    cell = times * rows * columns - 3
    found = view(one, "attention_map", stage="encoder", layer=1, position=cell)
    close(found["maps"], weights[:, cell].view(-1, times, rows, columns))
    assert found["query"] == f"{times - 1}:{rows - 1},{columns - 3}"


def test_time_and_space_apart(things: Models) -> None:
    """A cell looks at itself along the time and at its own frame over the space; the class token at each frame."""
    one = things["timesformer"]
    rows, columns = view(one, "input")["shape"][1:]
    points = [f"encoder.blocks.0.{part}.weights" for part in ("time", "space")]
    found = seen(one, *points)
    along, over = (found[point] for point in points)  # [cells, heads, frames, frames], [frames, heads, 1 + cells, …]
    frame, cell = 2, 5
    at = 1 + frame * rows * columns + cell
    time_map = unpack(view(one, "attention_map", part="time", position=at)["maps"]).flatten(2)
    torch.testing.assert_close(time_map[:, :, cell], along[cell, :, frame].double(), atol=3e-5, rtol=0)
    assert time_map.sum() == pytest.approx(time_map[:, :, cell].sum().item())  # and at nothing else
    space_map = unpack(view(one, "attention_map", part="space", position=at)["maps"]).flatten(2)
    torch.testing.assert_close(space_map[:, frame], over[frame, :, 1 + cell, 1:].double(), atol=3e-5, rtol=0)
    assert space_map.sum() == pytest.approx(space_map[:, frame].sum().item())
    first = unpack(view(one, "attention_map", part="space", position=0)["maps"]).flatten(2)
    torch.testing.assert_close(first, over[:, :, 0, 1:].transpose(0, 1).double(), atol=3e-5, rtol=0)
    with pytest.raises(af.Error, match="no attention over time"):
        view(one, "attention_map", part="time", position=0)


def test_rollout_through_time_and_space(things: Models) -> None:
    """Of the whole clip, written out token by token."""
    one = things["timesformer"]
    times, rows, columns = view(one, "input")["shape"]
    cells = rows * columns
    found = seen(one, "*.weights")
    total = np.eye(1 + cells * times)
    for layer in range(2):
        for part in ("time", "space"):
            weights = found[f"encoder.blocks.{layer}.{part}.weights"].mean(1).double().numpy()
            step = np.zeros_like(total)
            step[0, 0] = 1.0 if part == "time" else 0.0
            for c in range(cells):
                for t in range(times):
                    for other in range(times if part == "time" else cells):
                        if part == "time":
                            step[1 + c * times + t, 1 + c * times + other] = weights[c, t, other]
                        else:
                            step[1 + c * times + t, 1 + other * times + t] = weights[t, 1 + c, 1 + other]
                    if part == "space":
                        step[1 + c * times + t, 0] = weights[t, 1 + c, 0]
                        step[0, 1 + c * times + t] = weights[t, 0, 1 + c] / times
            if part == "space":
                step[0, 0] = weights[:, 0, 0].mean()
            np.testing.assert_allclose(step.sum(1), 1.0, atol=1e-5)
            total = (0.5 * step + 0.5 * np.eye(len(step))) @ total
    wanted = torch.from_numpy(total[0, 1:]).view(rows, columns, times).permute(2, 0, 1)
    close(view(one, "input_rollout", stage="encoder", position=0)["map"], wanted)


def test_an_answer_read_off_all_tokens(things: Models) -> None:
    """By their mean, or by a query of the head's own; and through the layers below, as the tasks' rollout has it."""
    from anyformer.data.images.attention_maps import class_attention

    found = seen(things["videomae"], "*.weights")
    total = torch.eye(32)
    for layer in range(2):
        weights = found[f"encoder.blocks.{layer}.self.weights"][0].mean(0)
        total = (0.5 * weights + 0.5 * torch.eye(32)) @ total
    got = view(things["videomae"], "pooling")
    assert got["by"] == "mean"
    close(got["rollout"]["map"], total.mean(0).view(2, 4, 4))
    one = things["pool"]
    batch = one.model_input(ViewRequest(image=image_file()), Deadline(60)).batch
    with torch.no_grad():
        both = class_attention(one.model, batch, batch["pixel_values"].shape[2:])
    assert both is not None
    got = view(one, "pooling", image=image_file())
    close(got["mean"], both[0][0])
    close(got["rollout"]["map"], both[1][0])
    with pytest.raises(af.Error, match="does not pool"):
        view(things["vit"], "pooling", image=image_file())


def test_hidden_tubes_of_a_clip(things: Models) -> None:
    """As many as the share says, the loss as the model gives it, and what was not hidden as it was."""
    import base64
    import io

    from PIL import Image

    one = things["tubes"]
    got = view(one, "reconstruction", share=0.5, seed=2)
    assert (got["masked"], got["patches"]) == (16, 32)
    batch = one.model_input(ViewRequest(seed=2), Deadline(60)).batch
    mask = torch.zeros(1, 32, dtype=torch.bool)
    seen_image, made, whole = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(got["images"][name][0].partition(",")[2])))).astype(int)
        for name in ("visible", "reconstruction", "image")
    )
    for cell in range(16):  # 8 x 8 pixels each; a hidden one is all gray
        row, column = divmod(cell, 4)
        part = (slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
        mask[0, [cell, 16 + cell]] = bool((seen_image[part] == 128).all())
        if not mask[0, cell]:
            assert np.abs(made[part] - whole[part]).max() <= 1
    assert int(mask.sum()) == 16
    with torch.no_grad():
        out = one.model(pixel_values=batch["pixel_values"], bool_masked_pos=mask)
    assert got["loss"] == pytest.approx(out.loss.item(), rel=1e-4)


@pytest.mark.parametrize("name", ["tubes", "mae"])
def test_what_is_hidden_is_the_same_in_every_pass(things: Models, name: str) -> None:
    """Else a silenced head could not be told from other patches."""
    asked = {"image": image_file()} if name == "mae" else {}
    one, other = (view(things[name], "heads", **asked, target=target) for target in ("a", "b"))  # two passes
    assert one == other


def test_points_and_the_query_that_pools_them(things: Models) -> None:
    one = things["points"]
    found = seen(one, "*.weights")
    got = view(one, "input")
    np.testing.assert_allclose(np.array(got["points"]), sample_inputs.points(2), atol=1e-5)
    pool = found["pool.blocks.0.cross.weights"][0, :, 0]
    close(view(one, "attention_map", stage="pool", part="cross", position=0)["maps"], pool)
    close(
        view(one, "attention_map", stage="encoder", layer=1, position=7)["mean"],
        found["encoder.blocks.1.self.weights"][0, :, 7].mean(0),
    )
    total = torch.eye(pool.shape[-1])
    for layer in range(2):
        total = (0.5 * found[f"encoder.blocks.{layer}.self.weights"][0].mean(0) + 0.5 * torch.eye(len(total))) @ total
    close(view(one, "input_rollout", stage="pool", position=0)["map"], 0.5 * pool.mean(0) @ total)


def test_columns_of_a_row(things: Models) -> None:
    """The class token's row by column names; a column that is missing is not looked at."""
    one = things["table"]
    got = view(one, "input")
    assert tuple(got["names"]) == COLUMNS and got["values"][2:] == ["cook", "Basel"]
    weights = seen(one, "encoder.blocks.0.self.weights")["encoder.blocks.0.self.weights"][0, :, 0, 1:]
    close(view(one, "attention_map", position=0)["maps"], weights)
    assert view(one, "attention_map", position=3)["query"] == "job"
    file = as_text(b"label,town,age\nyes,Bern,33\nno,Basel,58\n")
    second = view(one, "input", items=file, row=1)
    assert second["values"] == ["58", "", "", "Basel"] and second["of"] == 2
    looks = unpack(view(one, "attention_map", items=file, row=1, position=0)["maps"])
    assert (looks[:, 1:3] == 0).all() and (looks[:, 0] > 0).all()


@pytest.mark.parametrize("name", ["perceiver-picture", "perceiver-sound", "perceiver-points"])
def test_latents_over_whatever_was_read(things: Models, name: str) -> None:
    one = things[name]
    asked = {"image": image_file()} if "picture" in name else {"audio": audio_file()} if "sound" in name else {}
    found = seen(one, "*.weights", **asked)
    reads = found["latents.blocks.0.cross.weights"][0]
    shape = view(one, "input", **asked)["shape"]
    close(
        view(one, "attention_map", **asked, stage="latents", part="cross", position=4)["maps"],
        reads[:, 4].unflatten(-1, shape),
    )
    all_at_once = view(one, "queries", **asked, stage="latents", part="cross")
    close(all_at_once["maps"], reads.mean(0).unflatten(-1, shape))
    bits = -(reads.mean(0) * reads.mean(0).log2()).sum(-1)
    assert all_at_once["entropy"] == pytest.approx(bits.tolist(), abs=1e-3)
    close(view(one, "queries", **asked, stage="latents", part="cross", head=0)["maps"], reads[0].unflatten(-1, shape))
    # The answer's query looks at latents that looked at latents that looked at the input.
    total = 0.5 * reads.mean(0)
    for layer in (1, 2):
        step = found[f"latents.blocks.{layer}.self.weights"][0].mean(0)
        total = (0.5 * step + 0.5 * torch.eye(len(step))) @ total
    total = 0.5 * found["outputs.blocks.0.cross.weights"][0].mean(0) @ total
    close(view(one, "input_rollout", **asked, stage="outputs", position=0)["map"], total[0].unflatten(-1, shape))


def test_words_of_a_model_whose_text_follows_the_image(things: Models) -> None:
    """A class token and 16 patches, then the word that begins, then what is written; each word by the one before it."""
    one = things["git"]
    batch = one.model_input(ViewRequest(text="3", image=image_file()), Deadline(60)).batch
    begin = one.model.config.to_json()["begin"]
    ids = torch.tensor([[begin, 3, 4]])
    with torch.no_grad(), af.look(one.model, "decoder.blocks.1.self.weights") as found:
        one.model(pixel_values=batch["pixel_values"], input_ids=ids)
    rows = found["decoder.blocks.1.self.weights"][0].mean(0)[-3:]
    got = view(one, "word_attention", target="3 4 5", image=image_file(), layer=1)
    close(got["maps"], rows[:, 1:17].unflatten(-1, (4, 4)))
    assert got["words"] == ["3", "4", "5"]
    made = one.model.generate(
        pixel_values=batch["pixel_values"], input_ids=ids[:, :1], max_new_tokens=4, **one.end_options()
    )
    alone = view(one, "word_attention", image=image_file(), new_tokens=4)
    assert alone["words"] == [str(number) for number in made[0, 1:].tolist()]


def test_words_among_which_an_image_stands(things: Models) -> None:
    """A place is kept for each of the image's tokens; what a word looks at there it looks at in the image."""
    one = things["docked"]
    asked = {"text": "3 4 5", "image": image_file()}
    n = len([1 for name in view(one, "head", **asked, stage="decoder")["queries"] if name not in "345"])
    weights = seen(one, "decoder.blocks.0.self.weights", **asked)["decoder.blocks.0.self.weights"][0]
    assert weights.shape[-1] == n + 3
    rows, columns = view(one, "input", **asked)["shape"]
    got = view(one, "attention_map", **asked, stage="decoder", position=n + 2)
    close(got["maps"], weights[:, -1, n - rows * columns : n].unflatten(-1, (rows, columns)))
    assert got["query"] == "5"
    spoken = view(one, "word_attention", **asked, target="6 7", layer=0)
    longer = seen(one, "decoder.blocks.0.self.weights", text="3 4 5 6", image=image_file())
    rows_of = longer["decoder.blocks.0.self.weights"][0].mean(0)[-2:, n - rows * columns : n]
    assert spoken["words"] == ["6", "7"]
    close(spoken["maps"], rows_of.unflatten(-1, (rows, columns)))


def test_joints_by_queries(things: Models) -> None:
    one = things["joints"]
    batch = one.model_input(ViewRequest(image=image_file()), Deadline(60)).batch
    with torch.no_grad():
        places = one.model(**batch).keypoints[0]
    got = view(one, "pose", image=image_file())
    np.testing.assert_allclose(np.array(got["keypoints"])[:, :2], places.numpy(), atol=1e-5)
    maps = unpack(got["maps"])
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(5, dtype=torch.float64), atol=1e-3, rtol=0)
    cross = seen(one, "decoder.blocks.1.cross.weights", image=image_file())["decoder.blocks.1.cross.weights"][0, :, 2]
    looks = view(one, "attention_map", image=image_file(), stage="decoder", part="cross", layer=1, position=2)
    close(looks["maps"], cross.unflatten(-1, maps.shape[1:]))
    assert looks["query"] == "point_3"


def test_joints_by_heat(things: Models) -> None:
    """The map is the model's, and the joint is where it is highest, but for less than a cell."""
    one = things["vitpose"]
    batch = one.model_input(ViewRequest(image=image_file()), Deadline(60)).batch
    with torch.no_grad():
        maps = one.model(**batch).heatmaps[0]
    got = view(one, "pose", image=image_file())
    close(got["maps"], maps, atol=3e-4)
    for joint, heat in zip(got["keypoints"], maps, strict=True):
        row, column = divmod(int(heat.argmax()), heat.shape[1])
        assert joint[2] == pytest.approx(heat.max().item(), abs=1e-4)
        ends = np.array([heat.shape[1] - 1, heat.shape[0] - 1])
        assert np.abs(np.array(joint[:2]) * ends - [column, row]).max() < 3


def test_joints_in_turn_are_told_of_one_another(tmp_path: Path) -> None:
    torch.manual_seed(0)
    af.build("keypoint-detr-tiny", autoregressive=True).save(tmp_path / "turns")
    one = LoadedModel.load(tmp_path / "turns")
    from anyformer.generation.keypoints import predict_keypoints

    batch = one.model_input(ViewRequest(image=image_file()), Deadline(60)).batch
    with torch.no_grad():
        wanted = predict_keypoints(one.model, batch["pixel_values"]).keypoints[0]
    np.testing.assert_allclose(np.array(view(one, "pose", image=image_file())["keypoints"])[:, :2], wanted, atol=1e-4)


def test_segments(things: Models) -> None:
    one = things["segmenter"]
    batch = one.model_input(ViewRequest(image=image_file()), Deadline(60)).batch
    with torch.no_grad():
        logits = one.model(**batch).logits
    size = tuple(view(one, "segments", image=image_file())["size"])
    right = torch.nn.functional.interpolate(logits, size=size, mode="bilinear", align_corners=False)[0].argmax(0)
    got = view(one, "segments", image=image_file())
    shares = {one["class"]: one["share"] for one in got["classes"]}
    assert shares == pytest.approx({int(n): float((right == n).float().mean()) for n in right.unique()}, abs=2e-3)
    weights = seen(one, "decoder.blocks.1.self.weights", image=image_file())["decoder.blocks.1.self.weights"][0]
    looks = view(
        one, "attention_map", image=image_file(), stage="decoder", layer=1, position=18
    )  # 16 patches, then the classes
    close(looks["maps"], weights[:, 18, :16].unflatten(-1, (4, 4)))
    assert looks["query"] == "LABEL_2"


def test_slots_over_a_data_set(things: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples, images that are given and those of a folder; all as the model says, with the colors of the plot."""
    from PIL import Image

    from anyformer.explorer.image_folder import ImageFolder

    one = things["detr"]
    given = view(one, "query_boxes", images=[image_file(0), image_file(1)])
    boxes = unpack(given["boxes"])
    for i, seed in enumerate((0, 1)):
        batch = one.model_input(ViewRequest(image=image_file(seed)), Deadline(60)).batch
        with torch.no_grad():
            torch.testing.assert_close(boxes[i], one.model(**batch).pred_boxes[0].double(), atol=3e-5, rtol=0)
    close(given["colors"], size_colors(boxes[..., 2:].reshape(-1, 2)).view(2, -1, 3), atol=1e-4)
    whole = [view(one, "query_boxes", top=top) for top in (0, 8)]
    assert [part["next"] for part in whole] == [8, sample_inputs.SCENES] and whole[0]["source"] == "example"
    monkeypatch.setattr(query_boxes, "MAX_SECONDS", 0.0)  # nobody is kept waiting: the page asks on
    assert view(one, "query_boxes")["next"] == 1
    monkeypatch.undo()
    for i in range(10):
        Image.fromarray(sample_inputs.scene(i)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("no image")
    one.gallery = ImageFolder.of(tmp_path)
    try:
        folder = view(one, "query_boxes")
        assert folder["of"] == 10 and folder["source"] == "folder"
        torch.testing.assert_close(unpack(folder["boxes"]), unpack(whole[0]["boxes"]), atol=1e-6, rtol=0)
        with pytest.raises(af.Error, match="expected 0"):
            view(one, "query_boxes", top=10)
    finally:
        one.gallery = None
    with pytest.raises(af.Error, match="no images"):
        ImageFolder.of(tmp_path.joinpath("empty").mkdir() or tmp_path / "empty")  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("name", "chosen", "mute", "asked"),
    [
        ("videomae", "attention_map", "encoder.0.self.0", {"layer": 1, "position": 3}),
        ("timesformer", "attention_map", "encoder.0.time.1", {"layer": 1, "part": "space", "position": 0}),
        ("points", "attention_map", "encoder.0.self.0", {"stage": "pool", "part": "cross"}),
        ("table", "attention_map", "encoder.0.self.2", {"layer": 1, "position": 0}),
        ("perceiver-points", "input_rollout", "latents.1.self.0", {"stage": "outputs"}),
        ("joints", "pose", "decoder.0.cross.1", {"image": image_file()}),
        ("vitpose", "pose", "encoder.0.self.1", {"image": image_file()}),
        ("segmenter", "segments", "decoder.0.self.1", {"image": image_file()}),
        ("segmenter", "queries", "decoder.0.self.1", {"image": image_file(), "stage": "decoder", "layer": 1}),
        ("detr", "query_boxes", "decoder.0.cross.1", {"images": [image_file()]}),
    ],
)
def test_a_silenced_head_changes_the_view(things: Models, name: str, chosen: str, mute: str, asked: Any) -> None:
    stage, layer, part, head = mute.split(".")
    silence = [{"stage": stage, "layer": int(layer), "part": part, "head": int(head)}]
    assert view(things[name], chosen, **asked) != view(things[name], chosen, **asked, ablate=silence)


# Files that are handed in.


def test_a_clip_in_any_form_is_the_clip(things: Models, tmp_path: Path) -> None:
    one = things["videomae"]
    by_zip = view(one, "input", clip=as_text(frames_zip()))
    assert by_zip["images"] == view(one, "input", clip=as_text(npz(x=frames())))["images"]
    several = as_text(npz(x=np.stack([frames() // 2, frames()])))
    second = view(one, "input", clip=several, row=1)
    assert second["images"] == by_zip["images"] and second["of"] == 2
    assert view(one, "input", clip=several)["images"] != by_zip["images"]
    gray = view(one, "input", clip=as_text(npz(frames=frames()[..., 0])))
    assert len(gray["images"]) == len(by_zip["images"])


def test_a_video_file(things: Models) -> None:
    av = pytest.importorskip("av")
    import io

    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        track = container.add_stream("ffv1", rate=5)  # without loss
        track.width, track.height, track.pix_fmt = 24, 20, "bgr0"
        for frame in frames():
            for packet in track.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                container.mux(packet)
        for packet in track.encode():
            container.mux(packet)
    one = things["videomae"]
    by_file = view(one, "input", clip=as_text(stream.getvalue()))
    assert by_file["images"] == view(one, "input", clip=as_text(frames_zip()))["images"]


def test_a_set_in_any_form_is_the_set(things: Models) -> None:
    one = things["points"]
    points = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    lines = "x,y\n" + "\n".join(f"{a},{b}" for a, b in points.tolist())
    wanted = pytest.approx(points, abs=1e-5)
    assert np.array(view(one, "input", items=as_text(lines.encode()))["points"]) == wanted
    assert np.array(view(one, "input", items=as_text(npz(x=points)))["points"]) == wanted
    ragged = npz(x=np.concatenate([points[:2], points]), offsets=np.array([0, 2, 7]))
    assert np.array(view(one, "input", items=as_text(ragged), row=1)["points"]) == wanted


@pytest.mark.parametrize(
    ("name", "asked", "says"),
    [
        ("videomae", {"clip": as_text(b"hello")}, "video"),
        ("videomae", {"clip": as_text(npz(x=np.zeros((3, 4))))}, "expected [frames"),
        ("videomae", {"clip": as_text(npz(x=np.zeros((3, 4, 4))))}, "uint8"),
        ("videomae", {"clip": as_text(npz(y=np.zeros(3)))}, "clips with the name x"),
        ("videomae", {"clip": as_text(npz(x=frames())), "row": 3}, "row is 3"),
        ("points", {"items": as_text(b"a,b\n1,2\n3\n")}, "same count in every line"),
        ("points", {"items": as_text(b"1,2,3\n")}, "[1, 3]"),
        ("points", {"items": as_text(b"nan,2\n")}, "NaN"),
        ("points", {"items": as_text(b"\xff\xfe\x00")}, "neither an npz nor a CSV"),
        ("points", {"items": as_text(b"1,2\n" * 3000)}, "the maximum is 2,048"),
        ("table", {"items": as_text(b"color,size\nred,3\n")}, "the model reads age"),
        ("table", {"items": as_text(b"age,job\n")}, "no rows"),
        ("table", {"items": as_text(b"")}, "empty"),
        ("vit", {"image": image_file(), "row": -1}, "must be 0 or more"),
    ],
)
def test_mistakes_are_one_sentence(things: Models, name: str, asked: Any, says: str) -> None:
    with pytest.raises(af.Error, match=says.replace("(", r"\(").replace("[", r"\[")):
        view(things[name], "input", **asked)


def test_what_would_unpack_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 1000)
    for read, content in ((uploads.read_clip, frames_zip()), (uploads.read_set, npz(x=np.zeros((200, 2))))):
        with pytest.raises(af.Error, match="unpacked"):
            read(content, 0)


def test_an_array_that_promises_more_than_it_holds(things: Models) -> None:
    """The header of an array says its shape; here a terabyte of it, in a file of a few bytes."""
    import io
    import zipfile

    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 16)}".ljust(117) + b"\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 64)
    with pytest.raises(af.Error, match="damaged"):
        view(things["points"], "input", items=as_text(stream.getvalue()))


def test_arrays_are_never_unpickled(things: Models) -> None:
    with pytest.raises(af.Error, match=r"x\.npy .*object"):
        view(things["points"], "input", items=as_text(npz(x=np.array([{"a": 1}], dtype=object))))
