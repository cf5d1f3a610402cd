"""Files of folders from anywhere: what is no plain, small, flat JSON file inside its folder is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import anyformer as af
from anyformer.config import parse
from anyformer.jsonfile import MAX_DEPTH, check_inside, parse_json, read_json, read_object
from anyformer.schema import Length, Range, check_fields, fits


def _deep(file: Path) -> None:
    file.write_text("[" * 200_000)


def _nested(file: Path) -> None:
    file.write_text('{"a":' * 100 + "1" + "}" * 100)


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.mkdir()


def _link(file: Path) -> None:
    outside = file.parent.parent / "outside.json"
    outside.write_text("{}")
    file.symlink_to(outside)


def _bytes(file: Path) -> None:
    file.write_bytes(b'{"a": "\xff"}')


def _text(file: Path) -> None:
    file.write_text("{'a': 1}")


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "deep": (_deep, "nested more than"),
    "nested": (_nested, "nested more than"),
    "pipe": (_pipe, "not a regular file"),
    "folder": (_folder, "not a regular file"),
    "link": (_link, "leads out of its folder"),
    "bytes": (_bytes, "not UTF-8"),
    "text": (_text, "line 1, is not valid JSON: .* at column 2"),
}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("case", BAD)
def test_a_model_folder_with_a_bad_file(tmp_path: Path, case: str, name: str) -> None:
    folder = tmp_path / "model"
    af.build("gpt2-tiny").save(folder, format="hf")
    (folder / name).unlink(missing_ok=True)
    make, said = BAD[case]
    make(folder / name)
    with pytest.raises(af.Error, match=said) as error:
        af.load(folder)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("case", BAD)
def test_a_tokenizer_with_a_bad_config(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "model"
    af.Tokenizer.train(iter(["a line", "one more line"]), kind="char").save(folder)
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    BAD[case][0](folder / "tokenizer_config.json")
    if case in ("pipe", "folder"):  # as if it were not there
        af.Tokenizer.load(folder)
    else:
        with pytest.raises(af.Error, match=BAD[case][1]):
            af.Tokenizer.load(folder)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"a": "b" * 100}))
    with pytest.raises(af.Error, match=r"config\.json .* 50 bytes"):
        read_json(file, limit=50)
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(af.Error, match="more than"):
        read_json(file)


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("config.json")
    with pytest.raises(af.Error, match="cannot be read"):
        read_json(tmp_path / "config.json")


def test_integers_past_64_bits_are_floats() -> None:
    said = parse_json('{"model_max_length": 1000000000000000019884624838656, "id": 9223372036854775807}', "file")
    assert said == {"model_max_length": 1e30, "id": 2**63 - 1}
    assert isinstance(said["id"], int)
    assert parse_json("1" * 5000, "file") == float("inf")
    assert parse_json("-" + "1" * 5000, "file") == float("-inf")


@pytest.mark.parametrize("half", ['"\\ud800"', '{"\\uDC00": 1}', '["\\udfff\\ud800"]', '"\ud800"'])
def test_half_a_character_is_no_text(half: str) -> None:
    with pytest.raises(af.Error, match=r"x\.json .*surrogate"):
        parse_json(half, "x.json")
    assert parse_json('"\\ud83d\\ude42 \\\\ud800"', "x.json") == "🙂 \\ud800"


def test_depth_is_counted() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "file")
    with pytest.raises(af.Error, match="nested"):
        parse_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "file")


def test_links_inside_the_folder_and_of_the_download_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abcd").write_text('{"a": 1}')
    (snapshot / "config.json").symlink_to("../../blobs/abcd")
    (snapshot / "other.json").symlink_to("config.json")
    assert read_object(snapshot / "config.json") == read_object(snapshot / "other.json") == {"a": 1}
    with pytest.raises(af.Error, match="leads out"):
        check_inside(snapshot / ".." / ".." / ".." / "file", snapshot)


@pytest.mark.parametrize("content", ["[]", "1", "null", '"text"', "true"])
def test_a_config_that_is_no_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(af.Error, match="must hold a JSON object"):
        af.load(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": ["b"]}}])
def test_an_index_of_another_shape(tmp_path: Path, index: Any) -> None:
    af.build("gpt2-tiny").save(tmp_path, format="hf")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(af.Error, match="weight_map"):
        af.load(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/../../other.safetensors"])
def test_an_index_that_leads_out(tmp_path: Path, name: str) -> None:
    af.build("gpt2-tiny").save(tmp_path / "model", format="hf")
    (tmp_path / "other.safetensors").write_bytes((tmp_path / "model" / "model.safetensors").read_bytes())
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(af.Error, match="leads out of its folder"):
        af.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("value", "hint", "good"),
    [
        (1, int, True),
        (True, int, False),
        (1.0, int, False),
        (float("nan"), float, False),
        (float("inf"), float, False),
        (10**400, float, False),
        (3, float, True),
        (None, int | None, True),
        ([1, 2], list[int], True),
        ([1, "2"], list[int], False),
        ((1, 2), list[int], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "1"}, dict[str, int], False),
        (True, Literal[1], False),
        (0, Annotated[int, Range(1, 10)], False),
        (10, Annotated[int, Range(1, 10)], True),
        (0.0, Annotated[float, Range(above=0)], False),
        (1.0, Annotated[float, Range(below=1)], False),
        (None, Annotated[int | None, Range(1)], True),
        ([1, 2, 3], Annotated[list[int], Length(most=2)], False),
    ],
)
def test_what_fits(value: Any, hint: Any, good: bool) -> None:
    assert fits(value, hint) is good


def test_an_error_names_the_field_and_is_short() -> None:
    with pytest.raises(af.Error, match=r'^here: "n" is .* 1 .* 9\.') as error:
        check_fields({"n": "x" * 10_000}, {"n": Annotated[int, Range(1, 9)]}, "here")
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("case", ["pipe", "folder"])
def test_weights_that_are_no_file(tmp_path: Path, case: str) -> None:
    af.build("gpt2-tiny").save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    BAD[case][0](tmp_path / "model.safetensors")
    with pytest.raises(af.Error, match=r"model\.safetensors .*regular"):
        af.load(tmp_path)


def test_json_on_the_command_line_that_is_nested_too_deeply() -> None:
    from anyformer.tasks import find

    with pytest.raises(af.InputError, match=r"\b64\b"):
        find("classify-set").thing("[" * 5000)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="object"):
        parse("[" * 200_000, dict[str, int])
