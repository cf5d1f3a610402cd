"""The demo's parts on a small scale; the real thing, 97% and more, where slow tests run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli.demo import number_translation as demo


def test_learning_and_test_numbers_are_disjoint() -> None:
    learn, test = demo.draw_numbers(5000, 1000, seed=3)
    assert len(set(learn)) == 5000 and len(set(test)) == 1000 and not set(learn) & set(test)
    assert set(range(100)) < set(learn)
    assert all(0 <= number < 1_000_000 for number in (*learn, *test))
    digits = {len(str(number)) for number in test}
    assert digits == {3, 4, 5, 6}, "numbers of every length are tested"


def test_splitting_loses_nothing() -> None:
    numbers = [*range(1200), *random.Random(0).sample(range(1_000_000), 2000)]
    for pair in map(demo.write_out, numbers):
        split = demo.split_german(pair.german)
        assert demo.join_german(split) == pair.german
        assert not {"hundertund", "undzwanzig"} & set(split.split())
    assert demo.split_german("einhunderteinundzwanzigtausendfünf") == "ein hundert ein und zwanzig tausend fünf"
    assert demo.split_english("twenty-one thousand, five") == "twenty one thousand five"


def test_the_vocabulary_of_the_learning_pairs_covers_every_number() -> None:
    corpus = demo.Corpus([demo.write_out(number) for number in (*range(102), 1000)])
    for pair in map(demo.write_out, random.Random(1).sample(range(1_000_000), 500)):
        ids = corpus.tokenizer.encode(demo.split_german(pair.german))
        assert corpus.tokenizer.unknown_id not in ids and len(ids) <= demo.MAX_LENGTH
        assert demo.join_german(corpus.tokenizer.decode(ids)) == pair.german
        assert corpus.tokenizer.unknown_id not in corpus.tokenizer.encode(demo.split_english(pair.english))


def test_batches_teach_the_next_word() -> None:
    corpus = demo.Corpus([demo.write_out(number) for number in range(300)])
    batch = corpus.collate(range(16))
    read, said = batch["decoder_input_ids"], batch["labels"]
    assert (read[:, 0] == demo.PADDING).all()
    assert torch.equal(read[:, 1:][said[:, :-1] != -100], said[:, :-1][said[:, :-1] != -100])
    assert ((said == demo.END).sum(dim=1) == 1).all()


def test_even_batches_have_rows_of_one_length_and_every_row_once_an_epoch() -> None:
    lengths = [3, 5, 3, 3, 5, 4, 3]
    first, second = (demo.even_batches(lengths, 2, seed=0, epoch=epoch) for epoch in (0, 1))

    def rows(batches: list[list[int]]) -> list[int]:
        return sorted(row for batch in batches for row in batch)

    assert all(len({lengths[row] for row in batch}) == 1 for batch in first)
    assert rows(first) == rows(second) == list(range(7))
    assert first == demo.even_batches(lengths, 2, seed=0, epoch=0) and first != second


def test_a_short_run_goes_all_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    settings = demo.DemoSettings(numbers=400, tests=20, steps=12, d_model=32, d_hidden=32, n_layers=1)
    result = demo.run(tmp_path / "new" / "out", settings)
    printed = capsys.readouterr().out
    assert f"{result.exact:.1%}" in printed and str(result.folder) in printed
    assert printed.count("\n" + " " * 11) == 10, "ten examples"
    assert torch.get_num_threads() == threads
    model, tokenizer = af.load(result.folder), af.Tokenizer.load(result.folder)
    english = [pair.english for pair in result.pairs]
    assert demo.translate(model, tokenizer, english) == result.answers, "the folder is the model that was tested"


def test_the_picture_is_of_a_number_that_flips(tmp_path: Path) -> None:
    pairs = [demo.write_out(number) for number in (7, 1021, 342_761)]
    corpus = demo.Corpus([demo.write_out(number) for number in (*range(102), 1000)])
    model = demo.make_model(demo.DemoSettings(d_model=32, n_layers=1), len(corpus.tokenizer))
    answers = [pair.german for pair in pairs]
    path = demo.draw(model, corpus.tokenizer, pairs, answers, tmp_path / "a.png")
    assert path is not None and path.stat().st_size > 10_000
    assert demo.draw(model, corpus.tokenizer, pairs[:2], answers[:2], tmp_path / "b.png") is None


def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(af.FolderError, match="cannot be written"):
        demo.run(tmp_path / "file")


@pytest.mark.slow
def test_the_demo_translates_97_percent(tmp_path: Path) -> None:
    result = demo.run(tmp_path)
    assert result.exact >= 0.97 and len(result.pairs) == 1000
    assert result.image is not None and result.image.exists()
