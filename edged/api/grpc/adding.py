"""A folder for the files of a model on their way into the repository."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from edged.engines.child import despite_cancelling
from edged.files import not_stored
from edged.models.repository import Repository


@contextlib.asynccontextmanager
async def adding(repository: Repository, what: str) -> AsyncIterator[Path]:
    """Beside the models, because that is where the bytes have to fit; removed at the end, also for a caller that is
    cancelled. EdgedError, about `what`, if it cannot be made. Another thread waits for the disk."""
    made: list[tempfile.TemporaryDirectory[str]] = []

    def make() -> None:
        repository.root.mkdir(parents=True, exist_ok=True, mode=0o750)
        made.append(tempfile.TemporaryDirectory(prefix=".adding-", dir=repository.root, ignore_cleanup_errors=True))

    try:
        try:
            await despite_cancelling(asyncio.to_thread(make))
        except OSError as error:
            raise not_stored(what, error) from error
        yield Path(made[0].name)
    finally:
        for folder in made:
            await despite_cancelling(asyncio.to_thread(folder.cleanup))
