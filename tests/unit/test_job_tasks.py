"""Disk errors in children, which runtimes often report as errors of the model, and models that change meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.backends.contract import REFERENCE, UNOPTIMISED, Order
from edged.errors import EngineUnusable, ModelRefused, OutOfSpace, Superseded
from edged.ipc import job_messages as jobs
from edged.jobs import tasks, trial
from edged.models.identity import file_digest
from edged.vision.family import Recognition, Thresholds
from tests.unit.control_room import inspection

TENSORS = Recognition(None, "", None, "", (), Thresholds())  # a model without picture input


@pytest.fixture
def job(tmp_path: Path) -> jobs.Build:
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "out").mkdir()
    order = Order(str(tmp_path / "model.onnx"), inspection().signature, UNOPTIMISED)
    return jobs.Build(order, str(tmp_path / "out"), TENSORS)


def chained(code: int) -> EngineUnusable:
    """Return an error as a backend raises it, caused by a disk error."""
    error = EngineUnusable("ONNX Runtime refuses the model: INVALID_PROTOBUF")
    error.__cause__ = OSError(code, "words")
    return error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_find_disk_fault_in_the_cause_of_an_error_is_out_of_space(job: jobs.Build, code: int) -> None:
    assert isinstance(tasks.find_disk_fault(job, chained(code)), OutOfSpace)


def test_find_disk_fault_of_a_healthy_disk_returns_none(job: jobs.Build) -> None:
    assert tasks.find_disk_fault(job, EngineUnusable("INVALID_PROTOBUF")) is None
    assert tasks.find_disk_fault(job, chained(errno.ENOENT)) is None
    assert tasks.find_disk_fault(jobs.Inspect(job.order.model), ModelRefused("no model")) is None
    assert tasks.find_disk_fault(job, ValueError("a bug")) is None
    assert not list(Path(job.out).iterdir())


def test_find_disk_fault_on_a_full_disk_is_out_of_space_without_a_cause(
    job: jobs.Build, small_disk: Path, fill: Callable[[Path], Path]
) -> None:
    fill(small_disk)
    full = jobs.Build(job.order, str(small_disk), TENSORS)
    assert isinstance(tasks.find_disk_fault(full, EngineUnusable("INVALID_PROTOBUF")), OutOfSpace)


def test_require_disk_model_that_cannot_be_read_is_a_disk_error(
    job: jobs.Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seek(self, position: int) -> None:
            pass

        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", lambda *_, **__: Failing())
    with pytest.raises(OutOfSpace, match="fails: Input/output error"):
        tasks.require_disk(jobs.Inspect(job.order.model))


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"other")], ids=["removed", "replaced"])
def test_do_trial_of_a_model_that_changes_meanwhile_has_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """The outcome would be cached for the model's digest, so another file with that content would be refused."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    order = Order(str(model), inspection().signature, REFERENCE, digest=file_digest(model))

    def attempt(*_: object) -> jobs.Checked:
        change(model)
        return jobs.Checked(jobs.RuntimeSupport("1.0", 6, 26, 13))

    monkeypatch.setattr(trial, "attempt", attempt)
    with pytest.raises(Superseded, match=r"model\.onnx was (removed|replaced)"):
        tasks.do(jobs.Check(order, {}, 10, {}, None), lambda progress: None)
