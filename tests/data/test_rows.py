"""Every format gives the same rows, packed or not; every mistake in a file is one sentence with file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anyformer as af
from anyformer.data import cache, unpack
from anyformer.data.rows import ListRows, Rows, read

ROWS = [
    {"text": "A lovely film.", "label": "good"},
    {"text": 'He said "no", twice.', "label": "bad"},
    {"text": "Größe, naïve — 東京", "label": "good"},
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))


def write(path: Path, text: str | bytes) -> Path:
    content = text.encode() if isinstance(text, str) else text
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix)
    path.write_bytes(pack(content) if pack else content)
    return path


def tsv(rows: list[dict[str, str]], header: bool = True) -> str:
    lines = (["\t".join(rows[0])] if header else []) + ["\t".join(row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def as_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_tables_give_the_same_rows(packed: str, tmp_path: Path) -> None:
    as_csv(tmp_path / "plain.csv", ROWS)
    contents = {
        "a.tsv": tsv(ROWS),
        "b.csv": (tmp_path / "plain.csv").read_text(),
        "c.jsonl": "\n".join(json.dumps(row) for row in ROWS),
        "d.json": json.dumps(ROWS),
        "e.json": json.dumps({"version": "1", "data": ROWS}, indent=1),
    }
    for name, content in contents.items():
        rows = read(write(tmp_path / (name + packed), content), names=("text",))
        assert rows.columns == ("text", "label") and list(rows) == ROWS, name
        assert len(rows) == 3 and rows[-1] == ROWS[2] and rows[1:][0] == ROWS[1]


def test_csv_cells_may_hold_lines(tmp_path: Path) -> None:
    rows = [{"text": "one\ntwo, three", "label": "a"}, {"text": 'a "b"\n\n c', "label": "b"}]
    as_csv(tmp_path / "x.csv", rows)
    found = read(tmp_path / "x.csv")
    assert list(found) == rows
    assert found.location(1).endswith("line 4")  # the header, and a row of two lines, come before


CELLS = st.text(st.sampled_from(['"', ",", "\n", "a", " ", "\u2028", "é"]), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.booleans(), CELLS, CELLS), min_size=1, max_size=8))
def test_csv_is_cut_as_python_cuts_it(rows: list[tuple[bool, str, str]]) -> None:
    """Cells written by a spreadsheet, and cells that somebody typed, with marks inside them that quote nothing."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    for typed, a, b in (*rows, (False, "a", "b")):
        if typed:
            a, b = (one.replace("\n", "").replace(",", "").lstrip('"') for one in (a, b))
            stream.write(f"x{a},{b}\n")
        else:
            writer.writerow(["x" + a, b])
    text = stream.getvalue()
    expected = list(csv.reader(io.StringIO(text, newline="")))
    with tempfile.TemporaryDirectory() as folder:
        found = read(write(Path(folder) / "x.csv", text), header=False)
        assert [list(row.values()) for row in found] == expected


def test_csv_without_a_header(tmp_path: Path) -> None:
    """What stands there again below is a row; what does not is what spreadsheets write first."""
    rows = "".join(f"text number {i} here,{'ab'[i % 2]}\n" for i in range(9))
    assert len(read(write(tmp_path / "x.csv", rows))) == 9
    assert len(read(write(tmp_path / "y.csv", "words,kind\n" + rows))) == 9
    assert len(read(write(tmp_path / "w.csv", "word,tag\nhouse,N\nword,V\ngo,A\n"))) == 3, "a word may be a header too"
    long = "y" * 200_000
    assert read(write(tmp_path / "z.csv", f"text,label\n{long},a\n"))[0] == {"text": long, "label": "a"}


def test_semicolons(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x.csv", "text;label\na, b;1\n"))[0] == {"text": "a, b", "label": "1"}


def test_semicolons_are_found_behind_blank_lines_and_in_quoted_headers(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "x.csv", "\ntext;label\nhi, you;a\nho;b\n"))
    assert rows[0] == {"text": "hi, you", "label": "a"}
    rows = read(write(tmp_path / "y.csv", '"text\nof, it, all";label\nhi;a\n'))
    assert list(rows) == [{"text\nof, it, all": "hi", "label": "a"}]


def test_json_with_a_mark_of_its_bytes(tmp_path: Path) -> None:
    assert list(read(write(tmp_path / "x.json", b"\xef\xbb\xbf" + json.dumps(ROWS).encode()))) == ROWS


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([*ROWS, {"text": "two\nlines", "label": None}])
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    rows = read(tmp_path / "x.parquet")
    assert list(rows)[:3] == ROWS and rows[3] == {"text": "two\nlines", "label": None}
    assert rows.location(2).endswith("x.parquet, row 3")
    write(tmp_path / "x.parquet.gz", (tmp_path / "x.parquet").read_bytes())
    assert list(read(tmp_path / "x.parquet.gz")) == list(rows)
    with pytest.raises(af.DataError, match=r"bad\.parquet .*Parquet"):
        read(write(tmp_path / "bad.parquet", "no"))


def test_plain_text_keeps_blank_lines_and_odd_ends(tmp_path: Path) -> None:
    """Windows ends, a byte-order mark, no newline at the end."""
    rows = read(write(tmp_path / "x.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\u2028still two\nlast".replace(b"\\u2028", b"")))
    assert [row["text"] for row in rows][:2] == ["one", ""]
    assert len(rows) == 4 and rows[3]["text"] == "last" and rows.location(3).endswith("line 4")


def test_parallel_files(tmp_path: Path) -> None:
    write(tmp_path / "a.en", "one\n\nthree\n")
    write(tmp_path / "a.de", "eins\n\ndrei\n")
    sides = ("source", "target")
    both = [{"source": "one", "target": "eins"}, {"source": "", "target": ""}, {"source": "three", "target": "drei"}]
    assert list(read([tmp_path / "a.en", tmp_path / "a.de"], sides=sides)) == both
    rows = read(f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}", sides=sides)
    assert list(rows) == both and rows.location(2).endswith("a.en, line 3")
    write(tmp_path / "b.de", "eins\n")
    with pytest.raises(af.DataError, match=r"a\.en has 3 lines.*b\.de has 1 "):
        read([tmp_path / "a.en", tmp_path / "b.de"], sides=sides)
    with pytest.raises(af.DataError, match=r"source, target; 1 .*file\.source,file\.target"):
        read(tmp_path / "a.en", sides=sides)
    write(tmp_path / "c.tsv", "one\teins\n")
    assert read(tmp_path / "c.tsv", sides=sides)[0] == {"1": "one", "2": "eins"}


def test_globs_and_several_files(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"part-{i}.tsv", f"text\tlabel\nrow {i}\t{i}\n")
    rows = read(tmp_path / "part-*.tsv")
    assert [row["text"] for row in rows] == ["row 0", "row 1", "row 2"]
    assert rows.location(2).endswith("part-2.tsv, line 2")
    write(tmp_path / "part-3.tsv", "text\tclass\nx\t1\n")
    with pytest.raises(af.DataError, match=r"part-3\.tsv has the columns text, class"):
        read(tmp_path / "part-*.tsv")
    with pytest.raises(af.DataError, match=r"other-\*\.tsv"):
        read(tmp_path / "other-*.tsv")


@pytest.mark.parametrize(
    ("text", "names", "header"),
    [
        ("sentence\tlabel\nnice\t1\n", (), True),  # numbers below a word
        ("tweet\tmood\n" + "so it goes\tsad\nhow nice\tglad\n" * 15, (), True),  # few values below a word
        ("Hi.\tHallo!\nGo.\tGeh.\n", (), False),
        ("yes\tja\nno\tnein\n", (), False),
        ("source\ttarget\nyes\tja\n", ("source", "target"), True),  # a name that the task knows
        ("to\tzu\ngo\tgehen\n", ("to", "en", "de"), False),  # one that is a word of the language too
        ("en\tde\ngo\tgehen\n", ("to", "en", "de"), True),
        ("3\t4\n5\t6\n", (), False),
    ],
)
def test_headers_are_found_out(text: str, names: tuple[str, ...], header: bool, tmp_path: Path) -> None:
    rows = read(write(tmp_path / "x.tsv", text), names=names)
    assert (rows.columns == tuple(text.split("\n")[0].split("\t"))) is header
    assert len(rows) == len(text.strip().split("\n")) - header
    assert len(read(tmp_path / "x.tsv", header=not header, names=names)) == len(rows) + (1 if header else -1)


CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter NNP I-NP I-PER
"""


def test_conll(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "eng.train.gz", CONLL), default="conll")
    assert list(rows) == [
        {"tokens": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["I-NP", "I-VP"], "tags": ["I-ORG", "O"]},
        {"tokens": ["Peter"], "2": ["NNP"], "3": ["I-NP"], "tags": ["I-PER"]},
    ]
    assert rows.location(1).endswith("line 6")
    with pytest.raises(af.DataError, match=r"line 4, has 3 columns; the first token has 4"):
        read(write(tmp_path / "x.conll", CONLL.replace("VBZ ", "")))


def test_squad(tmp_path: Path) -> None:
    asked = [{"id": "7", "question": "Who?", "answers": [{"text": "He", "answer_start": 0}]}]
    whole = {"data": [{"title": "T", "paragraphs": [{"context": "He did.", "qas": asked}]}]}
    rows = read(write(tmp_path / "x.json.gz", json.dumps(whole)))
    expected = {"id": "7", "title": "T", "context": "He did.", "question": "Who?", "answers": asked[0]["answers"]}
    assert list(rows) == [expected] and rows.location(0).endswith("question 1")
    del whole["data"][0]["paragraphs"][0]["context"]
    with pytest.raises(af.DataError, match="'context' is missing"):
        read(write(tmp_path / "y.json", json.dumps(whole)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.tsv", "text\tlabel\na\t1\nb\nc\t2\n", r"x\.tsv, line 3, has 1 column; the first line has 2"),
        ("x.csv", "text,label\na,1\nb,1,2\n", r"x\.csv, line 3, has 3 columns; the first line has 2"),
        ("x.tsv", "", r"x\.tsv is empty"),
        ("x.tsv.gz", "", r"x\.tsv\.gz is empty"),
        ("x.jsonl", "\n\n", r"x\.jsonl is empty"),
        ("x.json", "[]", r"x\.json is empty"),
        ("x.txt", b"ok\nfine\nGr\xf6\xdfe\n", r"x\.txt, line 3, is not UTF-8 text \(byte 0xf6 at column 3\)"),
        ("x.json", b'[{"a": "\xf6"}]', r"x\.json, line 1, is not UTF-8"),
        ("x.jsonl", '{"a": 1}\n{"a": \n', r"x\.jsonl, line 2, .*JSON .*column 7"),
        ("x.jsonl", '{"a": 1}\n[1]\n', r"x\.jsonl, line 2, .* object"),
        ("x.json", '{"a": 1,\n "b": }', r"x\.json, line 2, is not JSON"),
        ("x.json", '{"a": 1}', r'x\.json .*"data"'),
        ("x.tsv", "text\ttext\na\tb\n", r'two columns named "text"'),
        (
            "x.csv",
            'text,label\na,1\n"b,1\nc,1\n',
            r'x\.csv, line 3, .*\("\)',
        ),
        ("x.csv", "text,label\na,1\nb\rc,1\n", r"x\.csv, line 3, .*\\r"),
        (
            "x.jsonl",
            '{"a": 1}\n' + "[" * 100_000,
            r"x\.jsonl, line 2, .*nested",
        ),
        ("x.json", "[" * 100_000, r"x\.json .*nested"),
        ("x.json", '[{"a": ' + "9" * 5000 + "}]", r"x\.json .*digits"),
        ("x.json", '[{"paragraphs": 3}]', r"x\.json .*SQuAD.*'int'"),
        ("x.json", '[{"paragraphs": [{"qas": [{}]}]}]', r"x\.json .*SQuAD.*'id'"),
        ("x.parquet", "nothing", r"x\.parquet is not a Parquet file: .*[^.]\.$"),
    ],
)
def test_bad_files(name: str, content: str | bytes, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(af.DataError, match=said):
        list(read(path, names=("text",)))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv.gz", tsv(ROWS))
    with pytest.raises(af.DataError, match=r"train\.tsv .*train\.tsv\.gz"):
        read(tmp_path / "train.tsv")
    with pytest.raises(af.DataError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(af.DataError, match="damaged or cut short"):
        read(write(tmp_path / "x.tsv", gzip.compress(b"a\tb\n" * 999)[:40]).rename(tmp_path / "y.tsv.gz"))
    with pytest.raises(af.ConfigError, match='Did you mean "tsv"'):
        read(tmp_path / "train.tsv.gz", format="tvs")


def test_columns_are_renamed_and_missing_ones_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", tsv(ROWS))
    assert read(path, columns={"said": "text"})[0] == {"said": "A lovely film."}
    with pytest.raises(af.DataError, match=r'no column "lable"\. Did you mean "label"\? It has: text, label\.'):
        read(path, columns={"label": "lable"})
    rows = read(write(tmp_path / "x.jsonl", '{"a": 1}\n{"b": 1}\n'), columns={"n": "a"})
    with pytest.raises(af.DataError, match=r"line 2, has no 'a'; it has: b"):
        list(rows)


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", tsv(ROWS))
    first = read(path).fingerprint
    assert read(path).fingerprint == first
    assert read(write(tmp_path / "copy.tsv", tsv(ROWS))).fingerprint == first
    assert read(path)[:2].fingerprint != first != read(path, columns={"a": "text"}).fingerprint
    assert read(write(path, tsv(ROWS[:2]))).fingerprint != first


def test_large_files_are_mapped_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits lowered, everything goes through the disk, block by block, and the rows are the same."""
    from anyformer.data.tables import formats, line_index

    many = [{"text": f"{i} größe \u2028 {'x' * (i % 50)}", "label": str(i % 3)} for i in range(500)]
    contents = {"a.tsv.gz": tsv(many), "b.json": json.dumps(many), "c.csv": tsv(many).replace("\t", ",")}
    for name, content in contents.items():
        write(tmp_path / name, content)
    expected = {name: list(read(tmp_path / name)) for name in contents}
    assert expected["a.tsv.gz"] == many == expected["c.csv"] and not (tmp_path / "cache").exists()
    for module, name, value in (
        (cache, "IN_MEMORY", 100),
        (unpack, "BLOCK", 64),
        (line_index, "BLOCK", 64),
        (line_index, "KEEP", 100),
        (formats, "BLOCK", 64),
    ):
        monkeypatch.setattr(module, name, value)
    for _ in range(2):  # made, then found
        assert {name: list(read(tmp_path / name)) for name in contents} == expected
    assert len(list(cache.cache_folder().iterdir())) == 2 + 2 * 3  # two unpacked, and three indices with digests


def test_rows_in_memory() -> None:
    rows: Rows = ListRows(ROWS)
    assert (
        list(rows.select([2, 0])) == [ROWS[2], ROWS[0]] and rows.select([2, 0]).location(0) == "the rows given, row 3"
    )
    with pytest.raises(IndexError):
        rows[3]
    empty: list[Any] = []
    with pytest.raises(af.DataError, match="empty"):
        ListRows(empty)
