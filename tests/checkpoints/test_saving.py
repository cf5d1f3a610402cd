"""A save that is killed at any file operation leaves the whole old model or the whole new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import saving
from anyformer.checkpoints import files
from tests.faults import count_operations, kill_at
from tests.training.toy import fingerprint

OTHERS = ("notes.txt", "model-backup.safetensors", "checkpoints/step-00000001/state.json")  # not the model's
FORMATS = ("anyformer", "hf")


def make(heads: int, words: str) -> Any:
    """Models whose weights fit each other's config: a mixture would load."""
    torch.manual_seed(heads)
    model = af.build("gpt2-tiny", n_layers=1, d_model=32, n_heads=heads, vocab_size=40, max_length=16).eval()
    model.origin.files = {"README.md": words.encode(), "merges.txt": words.encode()}
    model.origin.generation = {"max_length": heads}
    return model


def state(folder: Path) -> tuple[object, ...]:
    model = af.load(folder)
    generation = json.dumps(model.origin.generation)
    return fingerprint(model), model.config, sorted(model.origin.files.items()), generation


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote before it was killed is there; only a machine needs it on the disk, and that takes time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


Save = Callable[[Any, Path], None]


@pytest.fixture
def save(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Save in a format: the old model in one file and the new one in several, or the other way round."""
    kind, old_in_several = request.param

    def save(model: Any, folder: Path) -> None:
        several = old_in_several == (model.config.n_heads == 2)
        monkeypatch.setattr(files, "SHARD", 30_000 if several else 10**9)
        model.save(folder, format=kind)

    return save


CASES = [(("anyformer", False), True), (("hf", True), False)]
REST = [((kind, several), torn) for kind in FORMATS for several in (False, True) for torn in (False, True)]


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize(
    ("save", "torn"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST if case not in CASES)],
    indirect=["save"],
)
def test_a_killed_save_leaves_the_old_model_or_the_new(save: Save, torn: bool, tmp_path: Path) -> None:
    old, new = make(2, "old"), make(4, "new")
    before, folder = tmp_path / "before", tmp_path / "folder"
    save(old, before)
    for name in OTHERS:
        (before / name).parent.mkdir(parents=True, exist_ok=True)
        (before / name).write_text(f"mine: {name}")
    shutil.copytree(before, tmp_path / "counted")
    steps = count_operations(lambda: save(new, tmp_path / "counted"))
    expected = [state(before)]
    save(new, tmp_path / "after")
    expected.append(state(tmp_path / "after"))
    found = []
    for at in range(1, steps + 1):
        shutil.copytree(before, folder)
        kill_at(at, lambda: save(new, folder), torn)
        found.append(expected.index(state(folder)))
        assert all((folder / name).read_text() == f"mine: {name}" for name in OTHERS), f"operation {at}"
        save(new, folder)
        assert state(folder) == expected[1]
        assert not list(folder.rglob(".*")), "nothing half-written stays behind"
        shutil.rmtree(folder)
    assert found == sorted(found) and set(found) == {0, 1}, "old until the commit, new from there on"


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("format", FORMATS)
def test_a_killed_first_save_leaves_no_model_or_the_new(format: str, tmp_path: Path) -> None:
    new, folder = make(4, "new"), tmp_path / "folder"
    steps = count_operations(lambda: new.save(tmp_path / "counted", format=format))
    new.save(tmp_path / "after", format=format)
    for at in range(1, steps + 1):
        kill_at(at, lambda: new.save(folder, format=format), torn=at % 2 == 0)
        if folder.exists():
            assert state(folder) == state(tmp_path / "after")
        new.save(folder, format=format)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "counted", "folder"]
        shutil.rmtree(folder)


@pytest.mark.usefixtures("unsynced")
def test_a_load_that_finishes_a_save_may_be_killed_too(tmp_path: Path) -> None:
    old, new = make(2, "old"), make(4, "new")
    before, committed, folder = tmp_path / "before", tmp_path / "committed", tmp_path / "folder"
    old.save(before)
    shutil.copytree(before, tmp_path / "whole")
    steps = count_operations(lambda: new.save(tmp_path / "whole"))
    for at in range(1, steps + 1):  # the first state after the commit
        shutil.copytree(before, committed)
        kill_at(at, lambda: new.save(committed))
        if (committed / saving.COMMITTED).exists():
            break
        shutil.rmtree(committed)
    expected = state(tmp_path / "whole")
    shutil.copytree(committed, folder)
    count = count_operations(lambda: af.load(folder))
    assert count > 5
    for at in range(1, count + 1):
        shutil.rmtree(folder)
        shutil.copytree(committed, folder)
        kill_at(at, lambda: af.load(folder))
        assert state(folder) == expected, f"operation {at}"


@pytest.mark.usefixtures("unsynced")
def test_transformers_never_reads_a_mixture(tmp_path: Path) -> None:
    """It knows nothing of the commit: until all files are in place it finds no weights, and says so."""
    transformers = pytest.importorskip("transformers")
    old, new = make(2, "old"), make(4, "new")
    for model in (old, new):
        model.origin.files = {}
    before, folder, ids = tmp_path / "before", tmp_path / "folder", torch.tensor([[1, 2, 3, 4]])
    old.save(before, format="hf")
    shutil.copytree(before, tmp_path / "counted")
    steps = count_operations(lambda: new.save(tmp_path / "counted", format="hf"))
    expected = [model.eval()(input_ids=ids).logits.detach() for model in (old, new)]
    seen: dict[bytes, bool] = {}
    for at in range(1, steps + 1):
        shutil.copytree(before, folder)
        kill_at(at, lambda: new.save(folder, format="hf"))
        content = b"|".join(
            path.name.encode() + path.read_bytes() for path in sorted(folder.glob("*.*")) if path.is_file()
        )
        if content not in seen:
            seen[content] = read_by_others(transformers.GPT2LMHeadModel, folder, ids, expected)
        shutil.rmtree(folder)
    first, *between, last = seen.values()
    assert first and last and not all(between)


def read_by_others(kind: Any, folder: Path, ids: torch.Tensor, expected: list[torch.Tensor]) -> bool:
    """Whether the class reads one of the expected models; it may find no weights instead, but no other model."""
    try:
        theirs = kind.from_pretrained(folder)(input_ids=ids).logits
    except OSError:
        assert not (folder / "model.safetensors").exists()
        return False
    assert any(torch.allclose(theirs, ours, atol=1e-5) for ours in expected)
    return True


def test_a_config_edited_by_hand_loads(tmp_path: Path) -> None:
    make(2, "old").save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["model"]["dropout"] = 0.5
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert af.load(tmp_path / "model").config.dropout == 0.5


def test_what_is_written_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is synced before the commit, and the commit before any file is moved: power may fail too."""
    folder, done = tmp_path / "model", []
    make(2, "old").save(folder)
    fsync, rename, replace = os.fsync, Path.rename, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("sync", os.fstat(handle).st_ino)) or fsync(handle))
    monkeypatch.setattr(Path, "rename", lambda a, b: done.append(("commit", a.stat().st_ino)) or rename(a, b))
    monkeypatch.setattr(os, "replace", lambda a, b: done.append(("move", os.stat(a).st_ino)) or replace(a, b))
    make(4, "new").save(folder)
    kinds = [kind for kind, _ in done]
    commit, first = kinds.index("commit"), kinds.index("move")
    synced = {inode for kind, inode in done[:commit] if kind == "sync"}
    assert kinds.count("commit") == 1 and {inode for kind, inode in done if kind == "move"} <= synced
    assert ("sync", folder.stat().st_ino) in done[commit:first] and done[-1] == ("sync", folder.stat().st_ino)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_permissions_of_new_files(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        make(2, "old").save(tmp_path / "model")
        make(2, "old").save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o666 & ~mask}, modes
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o777 & ~mask


def test_two_processes_may_save_into_one_folder(tmp_path: Path) -> None:
    """A draft whose process lives is left alone; one comes after the other."""
    folder = tmp_path / "model"
    make(2, "old").save(folder)
    with saving.whole_folder(folder) as draft:
        make(4, "new").save(folder)
        (draft / "later.txt").write_text("later")
    assert (folder / "later.txt").read_text() == "later" and af.load(folder).config.n_heads == 4
    with saving.whole_folder(tmp_path / "other") as draft:  # both begin it
        make(4, "new").save(tmp_path / "other")
        (draft / "later.txt").write_text("later")
    assert (tmp_path / "other" / "later.txt").exists() and af.load(tmp_path / "other").config.n_heads == 4
    assert sorted(path.name for path in tmp_path.rglob(".*")) == []


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving works there; drafts are left alone, since nothing tells whether somebody is writing them."""

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = tmp_path / "model"
    make(2, "old").save(folder)
    (folder / f"{saving.DRAFT}theirs").mkdir()
    make(4, "new").save(folder)
    assert af.load(folder).config.n_heads == 4 and (folder / f"{saving.DRAFT}theirs").is_dir()


def test_a_script_that_locks_the_folder_does_not_stop_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `flock FOLDER anyformer …` does."""
    monkeypatch.setattr(saving, "PATIENCE", 0.05)
    make(2, "old").save(tmp_path / "model")
    handles = [os.open(folder, os.O_RDONLY) for folder in (tmp_path, tmp_path / "model")]
    try:
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_EX)
        make(4, "new").save(tmp_path / "model")
        make(4, "new").save(tmp_path / "other")
    finally:
        for handle in handles:
            os.close(handle)
    assert af.load(tmp_path / "model").config.n_heads == af.load(tmp_path / "other").config.n_heads == 4


def committed(folder: Path) -> Path:
    make(2, "old").save(folder)
    (folder / saving.COMMITTED).mkdir()
    return folder / saving.COMMITTED


def test_a_committed_save_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    """A folder from somebody else may pretend to be cut off: no file leaves or enters it through a link."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("secret")
    committed(tmp_path / "a").rmdir()
    (tmp_path / "a" / saving.COMMITTED).symlink_to(tmp_path / "home")
    af.load(tmp_path / "a")
    assert (tmp_path / "home" / "secret").exists() and not (tmp_path / "a" / "secret").exists()
    inside = committed(tmp_path / "b")
    (inside / "out").mkdir()
    (inside / "out" / "planted").write_text("planted")
    (tmp_path / "b" / "out").symlink_to(tmp_path / "home")
    with pytest.raises(af.FolderError, match="b/out is a link"):
        af.load(tmp_path / "b")
    assert not (tmp_path / "home" / "planted").exists()
    for text in ('["../home/secret"]', '[".."]', "{", "[1]", "3", "[" * 100_000):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        (committed(tmp_path / "c") / saving.OBSOLETE).write_text(text)
        with contextlib.suppress(af.Error):
            af.load(tmp_path / "c")
        assert (tmp_path / "home" / "secret").exists()


def test_a_folder_that_may_not_be_written_says_how_to_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (committed(tmp_path / "model") / "README.md").write_text("new")

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(af.FolderError, match=r"model .*Permission denied"):
        af.load(tmp_path / "model")


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    make(2, "old").save(tmp_path / "model")
    (tmp_path / "model" / "merges.txt").unlink()
    (tmp_path / "model" / "merges.txt").mkdir()
    with pytest.raises(af.FolderError, match=r"merges.txt is a folder"):
        make(4, "new").save(tmp_path / "model")
    assert af.load(tmp_path / "model").config.n_heads == 2
