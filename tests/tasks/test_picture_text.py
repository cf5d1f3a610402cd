"""Tasks on images and text: what they read, learn, answer and draw, and what they say of mistakes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anyformer as af
from anyformer.cli.main import main
from anyformer.cli.run import run
from anyformer.data.images.image_file import ImageFile
from anyformer.errors import DataError
from anyformer.tasks.ask_image import AskImage, split
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.caption import Caption
from anyformer.tasks.match import recalls
from anyformer.tasks.picture_text import as_grid
from anyformer.tasks.read import OcrOptions, Read
from anyformer.tokenizers.tokenizer import Tokenizer
from tests.checkpoints.oracles import make_oracle
from tests.checkpoints.oracles_vision import TROCR
from tests.training import picture_files as files

FAST = {"device": "cpu", "eval_every": 0, "save_every": 0, "batch_size": 12}
PLAIN = {"task.augment.flip": 0, "task.augment.color_jitter": 0, "task.augment.crop": None, "train.label_smoothing": 0}


def put(folder: Path, content: dict[str, bytes]) -> Path:
    for name, inside in content.items():
        (folder / name).write_bytes(inside)
    return folder / next(iter(content))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("recipe", ["cnn-transformer-tiny", "git-tiny"])
def test_captions_tell_colors(recipe: str, tmp_path: Path) -> None:
    """Squares of three colors: after some steps the caption names the color, with others' images it does not."""
    data = put(tmp_path, files.captioned())
    done = af.train(
        "caption", recipe=recipe, data=data, valid=data, out=tmp_path / "m", steps=80, lr=3e-3, **FAST, **PLAIN
    )
    caption: Any = af.task("caption", tmp_path / "m")
    for color in ("red", "green", "blue"):
        said = caption(files.square(files.COLORS[color], 2))
        assert color in str(said).split()
    figures = caption.evaluate(Caption.read(data))
    assert figures["cider"] > 2 * figures["cider_shuffled"] and figures["cider"] > figures["cider_commonest"]
    assert done.state.step == 80
    drawn = said.draw()
    assert isinstance(drawn, Image.Image) and drawn.width > 400  # the image, and a region for each word


def test_an_image_alone_has_no_negatives(tmp_path: Path) -> None:
    """A batch of one row teaches two towers nothing."""
    data = put(tmp_path, files.captioned())
    with pytest.raises(af.ConfigError, match=r"train\.batch_size"):
        af.train("match", recipe="clip-tiny", data=data, out=tmp_path / "m", steps=2, **{**FAST, "batch_size": 1})


def test_a_caption_a_line(tmp_path: Path) -> None:
    """A TSV with an image named on several lines is one row with several captions."""
    pixels = files.encode(files.square((1, 2, 3), 0))
    (tmp_path / "a.png").write_bytes(pixels)
    (tmp_path / "b.png").write_bytes(pixels)
    (tmp_path / "x.tsv").write_text("image\tcaption\na.png\tone\nb.png\ttwo\na.png\tthree\n")
    rows = Caption.read(tmp_path / "x.tsv")
    assert [row["captions"] for row in rows] == [["one", "three"], ["two"]]


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    content = {"images": [{"file": "nowhere.jpg", "captions": ["a dog"]}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(af.Error, match=r"nowhere\.jpg"):
        Caption.read(tmp_path / "x.json")


def test_recalls() -> None:
    """Three images, four texts, likeness by hand: text 1 is nearer to another image than to its own."""
    pictures = torch.eye(3)
    texts = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.5, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]])
    figures = recalls(pictures, texts, torch.tensor([0, 1, 1, 2]))
    assert figures["image_recall1"] == 75.0  # an image found by a text: all but text 1
    assert figures["text_recall1"] == 100.0  # for each image the nearest text is one of its own
    assert figures["image_recall5"] == figures["text_recall10"] == 100.0


def test_match_learns_and_names_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = put(tmp_path, files.captioned())
    settings = {**FAST, **PLAIN, "tokenizer.vocab_size": 290, "lr": 2e-3}
    settings.pop("train.label_smoothing")
    af.train("match", recipe="clip-tiny", data=data, valid=data, out=tmp_path / "m", steps=60, **settings)
    match: Any = af.task("match", tmp_path / "m")
    names = list(files.COLORS)
    found = match([files.square(files.COLORS[name], 4) for name in names], texts=names, template="a {} square on gray")
    assert [answer.label for answer in found] == names
    assert sum(found[0].scores.values()) == pytest.approx(1, abs=1e-4)
    assert match.vectors(texts=["a red square"]).norm() == pytest.approx(1, abs=1e-4)
    with pytest.raises(af.InputError, match="texts"):
        match(files.square((1, 2, 3), 0))
    with pytest.raises(af.InputError, match=r"\{\}"):
        match(files.square((1, 2, 3), 0), texts=["a"], template="no place")
    picture = tmp_path / "p.png"
    picture.write_bytes(files.encode(files.square(files.COLORS["red"], 3)))
    run("match", str(tmp_path / "m"), [str(picture), "a red square on gray", "a blue square on gray"], {})
    *_, use, said = capsys.readouterr().out.splitlines()
    assert said.startswith("a red square on gray (") and use.endswith("PICTURE TEXT TEXT")


def test_asking_learns_from_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shuffling the images raises the loss."""
    data = put(tmp_path, files.captioned())
    settings = {**FAST, **PLAIN, "lr": 3e-3, "tokenizer.vocab_size": 290}
    af.train("ask-image", recipe="metalm-tiny", data=data, valid=data, out=tmp_path / "m", steps=150, **settings)
    ask: Any = af.task("ask-image", tmp_path / "m")
    figures = ask.evaluate(type(ask).read(data))
    assert figures["loss_shuffled"] > 1.3 * figures["loss"]
    picture = tmp_path / "p.png"
    picture.write_bytes(files.encode(files.square(files.COLORS["red"], 3)))
    assert "red" in str(ask(f"{picture}|what is it?")) and ask(str(picture)).draw().width > 200
    assert "red" in str(ask({"image": str(picture), "question": "what is it?"}))
    capsys.readouterr()
    run("ask-image", str(tmp_path / "m"), [str(picture), "what is it?"], {})
    assert "red" in capsys.readouterr().out
    with pytest.raises(af.InputError, match="needs one question"):
        run("ask-image", str(tmp_path / "m"), [str(picture), "what is it?", "and what is that?"], {})


@pytest.mark.parametrize("task", ["caption", "read"])
def test_a_docked_model_says_its_task(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes about images too, but not from nothing: it wants a question."""
    data = put(tmp_path, files.captioned(6))
    AskImage.begin("metalm-tiny", AskImage.read(data)).save(tmp_path / "m")
    (tmp_path / "p.png").write_bytes(files.encode(files.square((1, 2, 3), 0)))
    with pytest.raises(SystemExit) as stopped:
        main(["run", task, "--model", str(tmp_path / "m"), str(tmp_path / "p.png")])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "metalm model trained for ask-image" in said and f"{task} " in said


def test_pictures_and_questions() -> None:
    assert split("a.jpg|who?", None)[1] == "who?" and split("a.jpg", "what?")[1] == "what?"
    assert split(("a.jpg", "where?"), "what?")[1] == "where?"


def reader(tmp_path: Path, **options: Any) -> Read:
    data = put(tmp_path, files.lines())
    made = Read.begin("line-reader-tiny", Read.read(data))
    made.settings = OcrOptions(max_target_length=8, **options)
    return made


def test_lines_keep_their_shape(tmp_path: Path) -> None:
    """As high as the model, as wide as they are, padded within a batch only."""
    task = reader(tmp_path)
    lines = [np.zeros((32, 40), dtype=np.uint8), np.zeros((8, 24), dtype=np.uint8)]
    batch, _ = task.look_at([task_picture(x) for x in lines])
    assert batch["pixel_values"].shape == (2, 1, 16, 48)
    assert batch["pixel_mask"][0].sum() == 16 * 20 and batch["pixel_mask"][1].sum() == 16 * 48


def task_picture(pixels: Any) -> ImageFile:
    return ImageFile.of(pixels)


def test_a_line_that_is_too_wide(tmp_path: Path) -> None:
    """Of 300 x 16 pixels, where the model reads 64 columns at 16 rows: squeezed or cut, and said; or refused."""
    wide = task_picture(np.zeros((16, 300), dtype=np.uint8))
    with pytest.warns(UserWarning, match="300 x 16 pixels.*squeezed"):
        batch, _ = reader(tmp_path).look_at([wide])
    assert list(batch["pixel_values"].shape) == [1, 1, 16, 64]  # as high as the model reads
    longer = task_picture(np.zeros((16, 3000), dtype=np.uint8))
    with pytest.warns(UserWarning, match="3000 x 16"):
        assert isinstance(str(reader(tmp_path)(longer)), str)  # alone in its batch, it is read
    with pytest.warns(UserWarning, match="cut off"):
        batch, _ = reader(tmp_path, overflow="cut").look_at([wide])
    assert batch["pixel_values"].shape[-1] == 64
    with pytest.raises(af.InputError, match="64 columns"):
        reader(tmp_path, overflow="refuse").look_at([wide])


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_lines_of_every_height_are_as_high_as_the_model(beyond: int, tmp_path: Path) -> None:
    """Just narrower, just as wide and just wider than the model reads."""
    task = reader(tmp_path)
    for height in range(1, 120):
        image = Image.new("L", (4 * height + beyond, height))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert task.example({"image": ImageFile.of(image)})["image"].shape[:2] == (1, 16)


def test_a_huge_line_is_squeezed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened at half its size, it is as wide for its height as before."""
    monkeypatch.setattr("anyformer.data.images.image_file.LARGEST", 64 * 800 // 4)
    line = task_picture(files.encode(np.full((64, 800), 200, dtype=np.uint8), "JPEG"))
    with pytest.warns(UserWarning, match="squeezed"):
        assert reader(tmp_path).look_at([line])[0]["pixel_values"].shape == (1, 1, 16, 64)


def test_captions_of_large_pictures_are_drawn_small(tmp_path: Path) -> None:
    task: Any = Caption.begin("cnn-transformer-tiny", Caption.read(put(tmp_path, files.captioned(6))))
    large = task_picture(np.zeros((3000, 4000, 3), dtype=np.uint8))
    assert task.draw(large, [3, 4]).size == (3 * 1004 + 4, 758)
    assert all(image.size == (1000, 750) for _, image in task.looks(large, [3, 4]))


def test_lines_are_answered_in_the_order_they_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever widths they have, and however many are sorted at a time."""
    task, widths = reader(tmp_path), [40, 8, 64, 24, 16, 56, 32]
    lines = [ImageFile.of(np.full((16, width), 200, dtype=np.uint8)) for width in widths]
    monkeypatch.setattr(task, "_said", lambda picture, ids: picture.open("L").width)
    for size in (1024, 3):
        monkeypatch.setattr("anyformer.tasks.read.SORTED", size)
        assert task(lines) == widths


def test_what_happens_to_a_wide_line_can_be_said_at_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader(tmp_path).save(tmp_path / "m")
    Image.fromarray(np.zeros((16, 300), dtype=np.uint8)).save(tmp_path / "wide.png")
    for task, way, said in (
        ("read", "refuse", "64 columns"),
        ("read", "chop", "overflow"),
        ("caption", "cut", "does not accept --overflow"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["run", task, "--model", str(tmp_path / "m"), str(tmp_path / "wide.png"), "--overflow", way])
        assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_what_counts_as_an_error_can_be_said_to_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the reader says of each line, in the other case: all wrong, or all right with task.lowercase. A line that is
    too wide is refused where that is asked for."""
    reader(tmp_path).save(tmp_path / "m")
    read: Any = af.task("read", tmp_path / "m")
    lines = {"a.png": np.zeros((16, 40), dtype=np.uint8), "b.png": np.full((16, 24), 200, dtype=np.uint8)}
    said = [str(read(pixels)).swapcase() for pixels in lines.values()]
    assert all(said)
    for name, pixels in lines.items():
        Image.fromarray(pixels).save(tmp_path / name)
    table = tmp_path / "said.tsv"
    table.write_text("file\ttext\n" + "".join(f"{name}\t{text}\n" for name, text in zip(lines, said, strict=True)))
    settings = ["eval", "read", "--model", str(tmp_path / "m"), "--data", str(table)]
    for more, exact in (([], "0.0000"), (["--set", "task.lowercase=true"], "100.0000")):
        with pytest.raises(SystemExit) as stopped:
            main([*settings, *more])
        figures = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
        assert not stopped.value.code and figures["exact"] == exact
    Image.fromarray(np.zeros((16, 300), dtype=np.uint8)).save(tmp_path / "a.png")
    for more, words in (("task.overflow=refuse", "a.png is 300 x 16"), ("task.overflw=cut", "task.overflow")):
        with pytest.raises(SystemExit) as stopped:
            main([*settings, "--set", more])
        assert stopped.value.code == 2 and words in capsys.readouterr().err


def test_evaluation_sees_the_data_alone(tmp_path: Path) -> None:
    """Lines that are drawn are for training; evaluating twice gives the same figures."""
    data = put(tmp_path, files.lines())
    rows = Read.read(data)
    task = Read.begin("line-reader-tiny", rows, setup=TaskSetup(task=OcrOptions(synthetic=3.0, max_target_length=8)))
    examples = task.prepare(rows)
    chance = torch.Generator().manual_seed(0)
    some = task.gather(examples, range(24))
    mixed = task.collate(some, chance)
    plain = [one["texts"][0] for one in some]
    drawn = sum(row[: len(ids)].tolist() != ids for row, ids in zip(mixed["labels"], plain, strict=True))
    assert drawn > 8
    for _, batch in task.batches_of(examples):
        lengths = batch["decoder_attention_mask"].sum(dim=1)
        assert int(lengths.max()) <= 5
    assert task.evaluate(rows) == task.evaluate(rows)


def test_grids() -> None:
    assert as_grid(torch.rand(2, 100), (160, 160)).shape == (2, 10, 10)  # type: ignore[union-attr]
    assert as_grid(torch.rand(2, 101), (160, 160)).shape == (2, 10, 10)  # type: ignore[union-attr]
    assert as_grid(torch.rand(2, 94), (32, 373)).shape == (2, 1, 94)  # type: ignore[union-attr]
    assert as_grid(torch.rand(2, 80), (32, 640)).shape == (2, 2, 40)  # type: ignore[union-attr]


def test_a_published_reader_brings_its_processor(tmp_path: Path) -> None:
    """A TrOCR folder as transformers saves it: pixels by its processor, words by its tokenizer, the same answer."""
    transformers = pytest.importorskip("transformers")
    decoder = {"model_type": "trocr", "is_decoder": True, **TROCR}
    oracle = make_oracle("VisionEncoderDecoderModel", decoder=decoder, pad_token_id=0, decoder_start_token_id=0)
    oracle.save_pretrained(tmp_path)
    tokenizer = Tokenizer.train(iter(["abcdefgh ijklmnop"]), kind="char", end=True, progress=False)
    tokenizer.save(tmp_path)
    processor = transformers.ViTImageProcessorPil(
        size={"height": 24, "width": 24}, image_mean=[0.4] * 3, image_std=[0.3] * 3
    )
    processor.save_pretrained(tmp_path)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 90, 3), dtype=np.uint8))
    pixels = processor(picture, return_tensors="pt").pixel_values
    read: Any = af.task("read", tmp_path, num_beams=1, max_target_length=6)
    found, _ = read.look_at([task_picture(picture)])
    torch.testing.assert_close(found["pixel_values"], pixels)
    with torch.no_grad():
        expected = oracle.generate(pixels, max_new_tokens=6, suppress_tokens=[2], do_sample=False)[0, 1:].tolist()
    assert list(read(picture).ids) == expected[: len(read(picture).ids)]


def test_lines_are_drawn_of_prose(tmp_path: Path) -> None:
    """A file of text gives the drawn lines their words and their case; the tokenizer knows every sign of ASCII."""
    data = put(tmp_path, files.lines())
    (tmp_path / "prose.txt").write_text("The Cat sat there.\nna\u00efve\nIt was Tom's.\n", encoding="utf-8")
    options = OcrOptions(synthetic=1.0, max_target_length=24, texts=str(tmp_path / "prose.txt"))
    task = Read.begin("line-reader-tiny", Read.read(data), setup=TaskSetup(task=options))
    assert task.press is not None and task.press.lines.texts == ["The Cat sat there.", "It was Tom's."]
    assert task.tokenizer.decode(task.encode("Tom's 7% zZ")).strip() == "Tom's 7% zZ"
    (tmp_path / "none.txt").write_text("\u00e9\u00e9\n", encoding="utf-8")
    with pytest.raises(DataError, match="ASCII"):
        Read.begin(
            "line-reader-tiny", Read.read(data), setup=TaskSetup(task=options.replace(texts=str(tmp_path / "none.txt")))
        )
