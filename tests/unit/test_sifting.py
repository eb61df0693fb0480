"""The child that examines frames: the box's faults are told apart from a frame's."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.engines import sifting
from edged.engines.child import ChildLost
from edged.engines.child_watch import Patience
from edged.errors import BuildFailed, Overloaded
from edged.ipc import job_messages as jobs


async def test_child_that_cannot_be_started_is_not_the_fault_of_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(Overloaded, match="cannot start the sift child"):
        await sifting.sift(jobs.Sift(str(tmp_path), ()))


@pytest.mark.parametrize(
    ("lost", "raised"),
    [
        (ChildLost("it got no processor", "late"), Overloaded),
        (ChildLost("it crashed", "crashed"), ChildLost),
        (BuildFailed("its answer cannot be read"), BuildFailed),
    ],
)
async def test_only_a_child_that_is_late_is_not_the_fault_of_a_frame(
    monkeypatch: pytest.MonkeyPatch, lost: BuildFailed, raised: type[Exception]
) -> None:
    given: list[float] = []

    async def run(job: jobs.Sift, answer: type, limits: object, *, patience: Patience) -> None:
        given.append(patience.starved_seconds)
        raise lost

    monkeypatch.setattr(sifting, "run", run)
    with pytest.raises(raised):
        await sifting.sift(jobs.Sift("folder", ()))
    assert given[0] > 600, "the child has the lowest priority"
