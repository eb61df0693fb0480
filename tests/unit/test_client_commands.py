"""Commands on engines, the status and events through both clients: requests, answers, and their ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.client import AsyncClient, Client
from edged.errors import DeadlineExceeded, NotFound, OutOfSpace, Refused
from edged.proto import operations_pb2 as ops
from tests.unit.client_commands import KEYS
from tests.unit.client_daemon import Running, eventually

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(f"unix:{tmp_path}/edged.sock") as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.target, timeout=10) as client:
        yield client


# --- progress -------------------------------------------------------------------------------------------------------


def test_rebuild_followed_yields_updates_to_the_end(client: Client, running: Running) -> None:
    updates = list(client.rebuild("doors", engine="aaaaaa", force=True))
    (request,) = running.daemon.commands.given
    assert request == ops.RebuildRequest(selector={"model": "doors", "engine": "aaaaaa"}, force=True, follow=True)
    assert [update.key for update in updates[:2]] == list(KEYS)
    assert {update.phase for update in updates[:2]} == {"waiting"}
    assert [update.fraction for update in updates[2:5]] == [0.0, 0.25, 0.5]
    assert (updates[0].fraction, updates[0].estimate_s) == (None, None)
    assert (updates[4].elapsed_s, updates[4].estimate_s) == (12.0, 30.0)
    assert [(update.done, update.succeeded, update.phase) for update in updates[5:]] == [(True, True, "")] * 2
    assert " ".join(updates[0].json()) == (
        "key model backend precision device state reason phase fraction elapsed_s estimate_s done succeeded"
    )


def test_rebuild_not_followed_yields_what_was_selected(client: Client, running: Running) -> None:
    assert [update.key for update in client.rebuild(everything=True, follow=False)] == list(KEYS)
    assert running.daemon.commands.given == [ops.RebuildRequest(selector={"everything": True})]


def test_rebuild_unread_answers_still_give_the_command(client: Client, running: Running) -> None:
    client.rebuild("endless")
    client.verify("endless")
    assert [type(request).__name__ for request in running.daemon.commands.given] == ["RebuildRequest", "VerifyRequest"]


def test_rebuild_nothing_to_make_ends_without_error(client: Client) -> None:
    assert list(client.rebuild("nothing")) == []
    assert list(client.verify("nothing", follow=False)) == []


@pytest.mark.parametrize(("model", "error"), [("missing", NotFound), ("refused", Refused), ("full", OutOfSpace)])
async def test_rebuild_refused_command_raises_at_once(
    client: Client, running: Running, model: str, error: type
) -> None:
    for command in (client.rebuild, client.verify):
        with pytest.raises(error):
            command(model)
    async with AsyncClient(running.target) as other:
        with pytest.raises(error):
            await other.rebuild(model)


async def test_rebuild_silent_daemon_raises_deadline_exceeded(running: Running) -> None:
    with Client(running.target, timeout=0.2) as client, pytest.raises(DeadlineExceeded):
        client.rebuild("hung")
    async with AsyncClient(running.target, timeout=0.2) as other:
        with pytest.raises(DeadlineExceeded):
            await other.rebuild("hung")
    assert await asyncio.to_thread(eventually, lambda: running.daemon.commands.watching == 0)


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
    assert eventually(lambda: running.daemon.commands.watching == 0)


async def test_async_updates_end_or_are_cancelled(running: Running) -> None:
    async with AsyncClient(running.target) as client:
        assert [update.key async for update in await client.rebuild("doors", follow=False)] == list(KEYS)
        async with await client.rebuild("endless") as following:
            assert (await anext(following)).key == KEYS[0]
        assert [update async for update in following] == []
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(client.events(after=3, follow=True)), 0.05)
        assert await asyncio.to_thread(eventually, lambda: running.daemon.commands.watching == 0)


# --- the other commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "pin", "unpin", "evict"])
def test_commands_return_the_selected_keys(client: Client, running: Running, verb: str) -> None:
    command = getattr(client, verb)
    assert command("doors") == command(engine="aaaaaa") == command(everything=True) == list(KEYS)
    assert command("nothing") == []
    with pytest.raises(Refused):
        command("serving")
    selectors = (
        {"model": "doors"},
        {"engine": "aaaaaa"},
        {"everything": True},
        {"model": "nothing"},
        {"model": "serving"},
    )
    assert running.daemon.commands.given == [ops.SelectEngines(selector=selector) for selector in selectors]


def test_status_values_match_the_message(client: Client, running: Running) -> None:
    running.daemon.commands.alarms = [ops.Alarm(kind="slow", message="3 times slower", model="doors", since_unix_s=5)]
    status = client.status()
    assert (status.version, status.epoch, status.serving, status.models) == ("0.1.0", "e1", 2, 3)
    assert (status.engine_bytes, status.budget_bytes, status.free_bytes) == (12_300_000, 2_000_000_000, 4_500_000_000)
    assert (status.building[0].phase, status.building[0].fraction) == ("building", 0.25)
    alarm = {"kind": "slow", "message": "3 times slower", "model": "doors", "engine": "", "since_unix_s": 5.0}
    assert list(status.json()["alarms"]) == [alarm]


# --- events ---------------------------------------------------------------------------------------------------------


def test_events_resume_by_epoch_and_number(client: Client, running: Running) -> None:
    assert [event.kind for event in client.events()] == ["model_read", "engine_evicted", "unknown"]
    (second, _) = client.events(1, epoch="e1")
    assert second.json() == {
        "epoch": "e1", "sequence": 2, "unix_s": 1.6e9, "kind": "engine_evicted", "model": "", "engine": "k" * 64,
        "bytes": 5, "reason": "to make room",
    }  # fmt: skip
    assert running.daemon.commands.given[1] == ops.WatchEventsRequest(after=1, epoch="e1")
    with client.events(follow=True) as events:
        assert [next(events).sequence for _ in range(3)] == [1, 2, 3]
    assert eventually(lambda: running.daemon.commands.watching == 0)
