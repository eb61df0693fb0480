"""Removal of a model by command."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from edged.models.entries import ModelEntry
from tests.integration.shape_world import until, world, zero


async def test_removed_during_a_slow_scan_forgets_the_model_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the name could not be added again until the scan ends."""

    async with world(tmp_path, zero("x"), backends="null") as each:
        repository, looks = each.controller.repository, [0]
        read = repository.entries

        def slowly() -> dict[str, ModelEntry]:
            entries = read()
            looks[0] += 1
            time.sleep(0.2)
            return entries

        monkeypatch.setattr(repository, "entries", slowly)
        await until(lambda: looks[0], "a scan runs", 10)
        repository.remove("m")
        await each.controller.removed("m")
        assert "m" not in each.controller.models
        await asyncio.sleep(0.5)
        assert "m" not in each.controller.models
