"""Disk errors of children, whatever runtimes make of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.backends.contract import UNOPTIMISED, Order
from edged.errors import EngineUnusable, ModelRefused, OutOfSpace
from edged.ipc import job_messages as jobs
from edged.jobs import tasks
from edged.vision.family import Recognition, Thresholds
from tests.unit.control_room import inspection

TENSORS = Recognition(None, "", None, "", (), Thresholds())  # of a model that takes no pictures


@pytest.fixture
def job(tmp_path: Path) -> jobs.Build:
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "out").mkdir()
    order = Order(str(tmp_path / "model.onnx"), inspection().signature, UNOPTIMISED)
    return jobs.Build(order, str(tmp_path / "out"), TENSORS)


def chained(code: int) -> EngineUnusable:
    """As a runtime's adapter raises it."""
    error = EngineUnusable("ONNX Runtime refuses the model: INVALID_PROTOBUF")
    error.__cause__ = OSError(code, "words")
    return error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_fault_error_of_the_disk_behind_a_runtimes_words_is_the_disks(job: jobs.Build, code: int) -> None:
    assert isinstance(tasks.find_disk_fault(job, chained(code)), OutOfSpace)


def test_fault_of_a_sound_disk_returns_none(job: jobs.Build) -> None:
    assert tasks.find_disk_fault(job, EngineUnusable("INVALID_PROTOBUF")) is None
    assert tasks.find_disk_fault(job, chained(errno.ENOENT)) is None
    assert tasks.find_disk_fault(jobs.Inspect(job.order.model), ModelRefused("no model")) is None
    assert tasks.find_disk_fault(job, ValueError("a bug")) is None
    assert not list(Path(job.out).iterdir())


def test_fault_on_a_full_disk_without_a_cause_is_the_disks(
    job: jobs.Build, small_disk: Path, fill: Callable[[Path], Path]
) -> None:
    fill(small_disk)
    full = jobs.Build(job.order, str(small_disk), TENSORS)
    assert isinstance(tasks.find_disk_fault(full, EngineUnusable("INVALID_PROTOBUF")), OutOfSpace)


def test_require_model_that_cannot_be_read_is_the_disks(job: jobs.Build, monkeypatch: pytest.MonkeyPatch) -> None:
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
