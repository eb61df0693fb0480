"""Startup of the daemon: a failure stops everything that was started before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edged.api.grpc.server import GrpcServers
from edged.config import Config
from edged.daemon.main import serve
from tests.waiting import children, run


def test_serve_whose_start_fails_leaves_no_task_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: GrpcServers) -> None:
        raise RuntimeError("no")

    async def story() -> None:
        others = asyncio.all_tasks()
        config = Config(listen=(f"unix:{tmp_path}/s",), state=str(tmp_path / "state"), cache=str(tmp_path / "cache"))
        with pytest.raises(RuntimeError):
            await serve(config)
        assert asyncio.all_tasks() <= others

    monkeypatch.setattr(GrpcServers, "start", fails)
    monkeypatch.setattr("edged.daemon.main.end_within", lambda *_: None)  # it would end this process
    before = children()
    run(story(), 60)
    assert children() <= before
