"""Commands on the folders of this box, without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edged.cli import local
from edged.cli.app import app
from edged.config.child_limits import AdmissionLimits
from edged.engines.admission import Admission
from edged.engines.builder import Builder
from edged.errors import InvalidInput, Superseded
from tests import ensemble_files, models
from tests.integration import onnx_files

pytestmark = pytest.mark.timeout(120)


def replaced_by_a_link(file: Path, other: Path) -> None:
    file.unlink()
    file.symlink_to(other)


def overwritten(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize("replace", [replaced_by_a_link, overwritten])
def test_add_file_replaced_after_examination_raises_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path, Path], None]
) -> None:
    file, other = models.save(models.conv(), tmp_path / "m.onnx"), models.save(models.matmul(), tmp_path / "other.onnx")
    admit = local.admit

    async def slow(
        builder: Builder, path: Path, settings: Mapping[str, str], installed: Iterable[str], samples: Sequence[Path]
    ) -> Admission:
        found = await admit(builder, path, settings, installed, samples)
        replace(file, other)
        return found

    box = local.LocalBox(tmp_path / "state", tmp_path / "cache")
    monkeypatch.setattr(local, "admit", slow)
    with pytest.raises(Superseded, match=r"m\.onnx"):
        box.add("m", file, {})
    assert list(box.repository.root.iterdir()) == []
    monkeypatch.undo()
    digest, _ = box.add("m", file, {})
    assert (box.repository.root / "m" / "1" / "model.onnx").read_bytes() == other.read_bytes()
    assert digest == box.plans()["m"].model.digest  # type: ignore[union-attr]


class Recorded(Exception):
    """Ends a command after its arguments have been recorded."""


@pytest.mark.parametrize(
    ("words", "environment", "seconds"),
    [((), {}, 18.0), (("--seconds", "60"), {}, 60.0), ((), {"EDGED_ADMISSION_SECONDS": "40"}, 40.0)],
)
def test_add_uses_the_given_limits_and_allowed_families(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    environment: dict[str, str],
    seconds: float,
) -> None:
    made: list[tuple[object, ...]] = []

    def box(*arguments: object) -> None:
        made.append(arguments)
        raise Recorded

    monkeypatch.setattr(local, "LocalBox", box)
    folders = ("--state", str(tmp_path), "--cache", str(tmp_path / "c"))
    environment = {**environment, "EDGED_FAMILIES_ALLOW": "tiles"}
    result = add("m", "m.onnx", *folders, "--memory-mb", "512", *words, environment=environment)
    assert isinstance(result.exception, Recorded)
    assert made == [(tmp_path, tmp_path / "c", AdmissionLimits(seconds=seconds, memory_mb=512), ("tiles",))]


def test_add_to_a_daemon_with_limits_is_refused(tmp_path: Path) -> None:
    file = models.save(models.conv(), tmp_path / "m.onnx")
    target = ("--target", f"unix:{tmp_path}/none")
    refused = add("m", file, *target, "--seconds", "60")
    assert refused.exit_code == 2
    assert "--seconds cannot be used with a daemon" in refused.stderr
    ignored = add("m", file, *target, environment={"EDGED_ADMISSION_SECONDS": "60"})
    assert "--seconds" not in ignored.stderr
    assert ignored.exit_code == 1, "no daemon listens"


def add(*line: str | Path, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["models", "add", *map(str, line)], env=environment)


def test_ensemble_without_a_daemon_is_listed_and_cannot_be_changed(tmp_path: Path) -> None:
    for name in "ab":
        folder = tmp_path / "state" / "models" / name / "1"
        folder.mkdir(parents=True)
        onnx_files.scale(folder / "model.onnx", 2.0)
    steps = ensemble_files.CHAIN
    ensemble_files.write(tmp_path / "state" / "models", "e", ensemble_files.config(steps))
    ensemble_files.write(tmp_path / "state" / "models", "wide", ensemble_files.config(steps, ["X FP32 1,5"]))
    box = local.LocalBox(tmp_path / "state", tmp_path / "cache")
    found = {info.name: info for info in box.models()}
    assert [found[name].state for name in ("a", "b", "e", "wide")] == ["stored", "stored", "stored", "refused"]
    assert found["e"].parts == ("a", "b")
    assert "tensor 'X' is [1, 5] for the ensemble and [1, 4] for step 0" in found["wide"].reason
    assert set(box.plans()) == {"a", "b"}
    for refused in (
        lambda: box.change("e", {"batch.max": "2"}),
        lambda: box.add("e", tmp_path / "m.onnx", {}, replace=True),
        lambda: box.explain("e"),
        lambda: box.model("e"),
    ):
        with pytest.raises(InvalidInput, match="model 'e' is an ensemble"):
            refused()
    assert box.remove("e", delete=True) == ""
    assert "e" not in {info.name for info in box.models()}
