"""What people type: the options of `anyformer train`, the same names in `af.train`, epochs, devices, callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.device import choose_device
from anyformer.errors import ConfigError, InputError
from anyformer.training.callbacks import Progress

RECIPE = "bert-tiny"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 rows of two classes."""
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    rows = [f"{word} film {i}\t{label}" for i in range(18) for word, label in (("good", "pos"), ("bad", "neg"))]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def command(table: Path, out: Path, *more: str) -> list[str]:
    return ["train", "classify-text", "--recipe", RECIPE, "--data", str(table), "--out", str(out), *more]


def resolved(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The lines of --dry-run, comments too, by their keys."""
    main_exits(list(arguments), 0)
    lines = (line.removeprefix("# ").partition(": ") for line in capsys.readouterr().out.splitlines())
    return {key: value.strip() for key, _, value in lines}


def main_exits(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert int(stop.value.code or 0) == code


def test_options_are_settings(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--steps 20_0 --lr 1e-3 --batch-size 4 --seed 7 --device cpu --precision float32 --max-length 24 --lora 2"
    found = resolved(capsys, *command(table, tmp_path / "a", *given.split(), "--dry-run"))
    wanted = {"steps": "200", "lr": "0.001", "batch_size": "4", "seed": "7", "device": '"cpu"', "lora": "2"}
    assert {name: found[f"train.{name}"] for name in wanted} == wanted
    assert (found["train.precision"], found["data.max_length"]) == ('"float32"', "24")


def test_epochs_become_steps(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--valid", str(table), "--epochs", "2.5", "--batch-size", "8", "--dry-run")
    found = resolved(capsys, *command(table, tmp_path / "a", *given))
    assert found["steps"] == "13 (2.5 epochs)"  # of 36 rows in batches of 8: 2.5 x 5 batches
    assert found["train.steps"].startswith("13 (follows")


def test_a_run_of_epochs_is_continued_for_more(table: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"recipe": RECIPE, "data": table, "valid": table, "batch_size": 8, "lr": 1e-3}
    given["out"] = tmp_path / "run"
    assert af.train("classify-text", epochs=1, device="cpu", **given).state.step == 5
    assert af.train("classify-text", epochs=2, device="cpu", resume=True, **given).state.step == 10
    assert af.train("classify-text", steps=12, device="cpu", resume=True, **given).state.step == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epochs", "2", "--steps", "3"], "Steps and epochs both"),
        (["--lr", "1", "--set", "train.lr=2"], "--lr and --set train.lr give the same setting"),
        (["--batch-size", "1", "--set", "batch_size=2"], "--batch-size and --set batch_size"),
        (["--lr", "fast"], "train.lr is 'fast'"),
        (["--epochs", "0"], "anyformer: train.epochs is 0.0; it must be above 0"),
        (["--max-length", "1"], "anyformer: data.max_length is 1; it must be 2 or more"),
        (["--image-size", "32"], "classify-text reads no images; leave data.image_size (--image-size) out"),
        (["--device", "tpu"], 'There is no device "tpu"; use auto'),
        (["--learning-rate", "1"], "no option --learning-rate. Did you mean --lr?"),
        (["--num-train-epochs", "1"], "Did you mean --epochs?"),
        (["--batch", "1"], "Did you mean --batch-size?"),
        (["--output-dir", "x"], "Did you mean --out?"),
        (["--warmup-ratio", "1"], "Did you mean --set train.warmup_steps=VALUE?"),
        (["--set", "hidden_size=4"], 'Did you mean "model.d_model"?'),
        (["--set", "num_epochs=4"], 'Did you mean "train.epochs"?'),
        (["--set", "train.imgsz=4"], 'Did you mean "data.image_size"?'),
    ],
)
def test_a_mistake_names_the_option(
    arguments: list[str], said: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main_exits(command(table, tmp_path / "a", *arguments), 2)
    shown = capsys.readouterr().err
    assert said in shown and len(shown.splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_spellings_of_other_libraries_when_building() -> None:
    known = {"hidden_size": "d_model", "depth": "n_layers", "embed_dim": "d_model", "imgsz": "image_size"}
    for theirs, ours in {**known, "drop_path_rate": "drop_path", "num_attention_heads": "n_heads"}.items():
        with pytest.raises(ConfigError, match=f'Did you mean "{ours}"'):
            af.build("vit-tiny", **{theirs: 4})
    for theirs, ours in {"learning_rate": "train.lr", "epochs": "train.epochs", "batch": "train.batch_size"}.items():
        with pytest.raises(ConfigError, match=f'It is the setting "{ours}" of af.train'):
            af.build("vit-tiny", **{theirs: 4})


def test_the_automatic_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, name in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=mps: found)
        assert choose_device("auto") == torch.device(name)
    for wrong in ("gpu", "cuda", "mps"):
        with pytest.raises(ConfigError, match="use auto"):
            choose_device(wrong)


class Recorded(af.Callback):
    """Notes what it is called for, and raises at a step."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.fail_at = fail_at

    def on_train_begin(self, progress: Progress) -> None:
        self.heard.append("begin")

    def on_step_end(self, progress: Progress) -> None:
        self.heard.append(f"step {progress.step}")
        if progress.step == self.fail_at:
            raise ZeroDivisionError("a mistake of the caller")

    def on_evaluate(self, progress: Progress, metrics: Any) -> None:
        self.heard.append(f"accuracy {metrics['accuracy'] >= 0}")

    def on_train_end(self) -> None:
        self.heard.append("end")


def test_callbacks_are_called(table: Path, tmp_path: Path) -> None:
    heard, steps = Recorded(), []
    given: dict[str, Any] = {"recipe": RECIPE, "data": table, "out": tmp_path / "run", "steps": 2, "device": "cpu"}
    af.train("classify-text", callbacks=[heard, lambda progress: steps.append(progress.step)], eval_every=0, **given)
    assert heard.heard == ["begin", "step 1", "step 2", "accuracy True", "end"] and steps == [1, 2]


def test_a_callback_ends_the_run(table: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        progress.stop = progress.step == 3

    done = af.train("classify-text", recipe=RECIPE, data=table, out=tmp_path, steps=50, device="cpu", callbacks=[stop])
    assert done.state.step == 3 and "accuracy" in done.metrics
    assert af.task("classify-text", tmp_path)("good film 1").label in ("pos", "neg")


def test_a_callback_that_raises_leaves_a_run_to_continue(table: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"recipe": RECIPE, "data": table, "steps": 6, "save_every": 2, "device": "cpu"}
    models = []
    broken = Recorded(fail_at=5)
    with pytest.raises(ZeroDivisionError, match="a mistake of the caller"):
        af.train("classify-text", out=tmp_path / "a", callbacks=[lambda now: models.append(now.model), broken], **given)
    assert broken.heard[-1] == "end"
    assert not models[0].training
    assert models[0](input_ids=torch.tensor([[1, 2]])).logits.isfinite().all()
    again = Recorded()
    af.train("classify-text", out=tmp_path / "a", resume=True, callbacks=[again], **given)
    assert again.heard[1] == "step 5"
    af.train("classify-text", out=tmp_path / "b", **given)
    one, other = (af.load(tmp_path / name).state_dict() for name in "ab")
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_wrong_callback_is_refused(table: Path, tmp_path: Path) -> None:
    for wrong in (3, Recorded):
        with pytest.raises(InputError, match=r"takes objects of af\.Callback"):
            af.train("classify-text", recipe=RECIPE, data=table, out=tmp_path / "a", callbacks=[wrong])  # type: ignore[list-item]
    assert not (tmp_path / "a").exists()
