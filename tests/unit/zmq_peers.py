"""Clients of the daemon's ZeroMQ sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edz-") as name:  # short, because a socket path has at most 107 bytes
        yield Path(name)


@asynccontextmanager
async def peer(folder: Path, kind: int = zmq.DEALER, name: str = "frames") -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    link = context.socket(kind)
    link.linger = 0
    link.connect(f"ipc://{folder}/{name}")
    try:
        yield link
    finally:
        link.close()
        context.term()
