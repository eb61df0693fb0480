"""Streaming calls of both clients: how they begin and end."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from edged.client import AsyncClient, Client
from edged.errors import DeadlineExceeded, NotFound, OutOfSpace, Refused
from edged.proto import operations_pb2 as ops
from tests.unit.client_commands import KEYS
from tests.unit.client_daemon import Running
from tests.waiting import until, wait

pytestmark = pytest.mark.timeout(60)


def test_rebuild_without_reading_the_answers_sends_the_command(client: Client, running: Running) -> None:
    client.rebuild("doors", engine="aaaaaa", force=True)
    client.verify("endless", follow=False)
    assert running.daemon.commands.given == [
        ops.RebuildRequest(selector={"model": "doors", "engine": "aaaaaa"}, force=True, follow=True),
        ops.VerifyRequest(selector={"model": "endless"}),
    ]


@pytest.mark.parametrize(
    ("model", "error"),
    [("missing", NotFound), ("refused", Refused), ("full", OutOfSpace), ("hung", DeadlineExceeded)],
)
async def test_rebuild_refused_command_raises_at_once(running: Running, model: str, error: type) -> None:
    with Client(running.target, timeout=0.5) as client, pytest.raises(error):
        client.rebuild(model)
    async with AsyncClient(running.target, timeout=0.5) as other:
        with pytest.raises(error):
            await other.rebuild(model)
    await until(lambda: running.daemon.commands.watching == 0)


def test_rebuild_followed_has_no_deadline(running: Running) -> None:
    with Client(running.target, timeout=0.3) as client, client.rebuild("endless") as updates:
        for _ in range(5):
            next(updates)
        closer = threading.Timer(1.0, updates.close)  # more than three times the timeout
        closer.start()
        assert next(updates, None) is None
        closer.join()


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_updates_closed_or_dropped_end_the_call(client: Client, running: Running, how: str) -> None:
    updates = client.rebuild("endless")
    next(updates)
    assert running.daemon.commands.watching == 1
    if how == "close":
        updates.close()
        assert next(updates, None) is None
    elif how == "with":
        with updates:
            pass
    else:
        del updates
        gc.collect()
    wait(lambda: running.daemon.commands.watching == 0)


async def test_async_updates_end_or_are_cancelled(running: Running) -> None:
    async with AsyncClient(running.target) as client:
        assert [update.key async for update in await client.rebuild("doors", follow=False)] == list(KEYS)
        async with await client.rebuild("endless") as following:
            assert (await anext(following)).key == KEYS[0]
        assert [update async for update in following] == []
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(client.events(after=3, follow=True)), 0.05)
        await until(lambda: running.daemon.commands.watching == 0)


def test_events_follow_yields_kept_events_as_values(client: Client) -> None:
    with client.events(1, epoch="e1", follow=True) as events:
        assert next(events).json() == {
            "epoch": "e1", "sequence": 2, "unix_s": 1.6e9, "kind": "engine_evicted", "model": "", "engine": "k" * 64,
            "bytes": 5, "reason": "to make room",
        }  # fmt: skip
        assert next(events).kind == "unknown"
