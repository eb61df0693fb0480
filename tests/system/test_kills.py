"""Hosts, build children and the tracker are killed at random moments: no request fails and the daemon survives."""

from __future__ import annotations

import asyncio

import pytest

from tests.attack import kills


@pytest.mark.long
def test_torture_processes_killed_at_random_loses_no_request() -> None:
    models, rounds = 4, 12  # `make kills` runs 300 rounds with 12 models
    with kills.prepared(models) as daemon:
        for name in (*(file.stem for file in daemon.models.glob("m*.onnx")), kills.DETECTOR):
            daemon.ready(name)
        seen = asyncio.run(kills.torture(daemon, rounds, 1.5))
        print(seen.line())
        assert seen.problems(longest=30.0) == []
        assert kills.left_behind(daemon) == []
        assert seen.kills.total() >= rounds // 2
