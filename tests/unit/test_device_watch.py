"""The watch on library folders: a change is reported after a quiet time, and a poll follows even without changes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from edged.engines.surveyor import changes, library_folders


def test_changes_rename_is_reported_after_a_quiet_time(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()

    async def watch() -> float:
        seen = changes([folder], quiet_seconds=0.6, poll_seconds=60)
        first = asyncio.create_task(anext(seen))
        await asyncio.sleep(1.0)  # a thread sets up the watch
        assert not first.done()
        for number in range(4):  # as dpkg does: write a new file under another name, then rename it
            new = tmp_path / "new"
            new.write_text(str(number))
            new.rename(folder / "libnvinfer.so.10")
            await asyncio.sleep(0.2)
        last = time.monotonic()
        await asyncio.wait_for(first, 20)
        await seen.aclose()
        return time.monotonic() - last

    assert asyncio.run(watch()) > 0.1


def test_changes_without_a_change_reports_at_each_poll(tmp_path: Path) -> None:
    async def watch() -> int:
        seen = changes([tmp_path], quiet_seconds=0.5, poll_seconds=0.8)
        for _ in range(2):
            await asyncio.wait_for(anext(seen), 20)
        await seen.aclose()
        return 2

    assert asyncio.run(watch()) == 2


def test_library_folders_include_site_packages() -> None:
    folders = library_folders()
    assert all(folder.is_dir() for folder in folders)
    assert any(folder.name in ("site-packages", "dist-packages") for folder in folders)
