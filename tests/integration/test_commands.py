"""Operators' commands on a real daemon: rebuild while serving, verify, pin and evict; status and events."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import edged
from edged import events
from edged.api_types import EngineInfo
from edged.errors import InvalidInput, ModelNotFound, NotFound, Refused
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.test_engine_life import Cameras

pytestmark = pytest.mark.timeout(180)


MODEL = "small"


@pytest.fixture(scope="module")
def own() -> Iterator[Daemon]:
    daemon = Daemon()
    onnx_files.convolutions(daemon.models / f"{MODEL}.onnx")
    with daemon:
        yield daemon


@pytest.fixture
def daemon(own: Daemon) -> Daemon:
    """The daemon of this module, with all engines built."""
    own.settled(MODEL)
    return own


@pytest.fixture
def client(daemon: Daemon) -> Iterator[edged.Client]:
    with daemon.client() as client:
        yield client


def command(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "edged", *words, "--target", daemon.unix]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def engines(client: edged.Client, model: str = MODEL) -> dict[str, EngineInfo]:
    return {engine.key: engine for engine in client.engines(model)}


def serving(client: edged.Client) -> str:
    return next(key for key, engine in engines(client).items() if engine.state == "serving")


def spare(client: edged.Client) -> str:
    """Return a built engine that does not serve."""
    return next(key for key, engine in engines(client).items() if engine.state == "ready" and engine.bytes)


# --- rebuild --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_rebuild_of_a_serving_engine_fails_no_request(stored: Daemon) -> None:
    with stored as daemon, daemon.client() as client:
        (before,) = [engine for engine in daemon.settled("shapes") if engine.state == "serving"]
        with Cameras(daemon, 2) as cameras:
            updates = list(client.rebuild(engine=before.key[:10], force=True))
            time.sleep(0.5)
        assert cameras.errors == []
        for sent, answered, skipped in zip(cameras.sent, cameras.answered, cameras.skipped, strict=True):
            assert sent == answered + skipped
            assert answered > 0
        assert {update.key for update in updates} == {before.key}
        assert not updates[0].done
        assert (updates[-1].done, updates[-1].succeeded, updates[-1].reason) == (True, True, "")
        assert any(update.phase not in ("", "waiting", "queued") for update in updates)
        after = {engine.key: engine for engine in daemon.settled("shapes")}
        assert after[before.key].created_unix_s > before.created_unix_s
        kinds = [event.kind for event in client.events() if event.engine == before.key]
        assert {"commanded", "engine_state", "engine_progress", "engine_serves"} <= set(kinds)


def test_rebuild_without_force_keeps_existing_engines(daemon: Daemon, client: edged.Client) -> None:
    before = {key: engine.created_unix_s for key, engine in engines(client).items()}
    assert list(client.rebuild(MODEL)) == []
    reported = command(daemon, "engines", "rebuild", MODEL, "--follow")
    assert (reported.returncode, reported.stderr) == (0, "")
    assert "--force" in reported.stdout
    assert {key: engine.created_unix_s for key, engine in engines(client).items()} == before


def test_rebuild_follow_command_prints_every_update(daemon: Daemon, client: edged.Client) -> None:
    before = engines(client)
    reported = command(daemon, "engines", "rebuild", MODEL, "--force", "--follow", "--json")
    assert (reported.returncode, reported.stderr) == (0, "")
    lines = [json.loads(line) for line in reported.stdout.splitlines()]
    assert {line["key"] for line in lines if line["done"] and line["succeeded"]} == set(before)
    assert {line["key"] for line in lines[: len(before)]} == set(before), "all selected engines come first"


def test_rebuild_continues_after_its_client_disconnects(client: edged.Client) -> None:
    key = spare(client)
    before = engines(client)[key].created_unix_s
    client.rebuild(engine=key, force=True).close()
    wait_for("the engine is rebuilt nevertheless", lambda: engines(client)[key].created_unix_s > before)


def test_cancelling_leaves_good_engines_as_they_were(daemon: Daemon, client: edged.Client) -> None:
    before = {key: engine.created_unix_s for key, engine in engines(client).items()}
    with client.rebuild(MODEL, force=True) as updates:
        (begun,) = wait_for("a build runs", lambda: client.status().building)
        cancelled = client.cancel(MODEL)
        last = {update.key: update for update in updates}
    assert begun.key in cancelled
    assert all(update.done for update in last.values())
    assert not last[begun.key].succeeded
    assert "cancelled" in last[begun.key].reason
    after = {engine.key: engine for engine in daemon.settled(MODEL)}
    assert {key: after[key].created_unix_s for key in cancelled} == {key: before[key] for key in cancelled}
    assert {engine.state for engine in after.values()} == {"ready", "serving"}


@pytest.mark.long
def test_cancelled_build_is_not_repeated_until_it_is_commanded(daemon: Daemon, client: edged.Client) -> None:
    client.add_model("fresh", onnx_files.convolutions(daemon.home / "fresh.onnx", layers=5))
    try:
        cancelled = client.cancel("fresh")
        assert cancelled
        making = {"absent", "queued", "building", "verifying"}
        wait_for("no build runs", lambda: not making & {each.state for each in engines(client, "fresh").values()})
        left = {engines(client, "fresh")[key].state for key in cancelled}
        assert "quarantined" in left
        assert left <= {"quarantined", "serving"}, "the reference serves, whatever its verdict"
        daemon.ready("fresh")
        assert not [alarm for alarm in client.status().alarms if alarm.model == "fresh"]
        updates = list(client.rebuild("fresh"))
        assert {update.key for update in updates if update.succeeded} == set(cancelled)
    finally:
        client.remove_model("fresh")


# --- verify ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_engines_are_verified_on_demand(daemon: Daemon, client: edged.Client) -> None:
    before = engines(client)
    updates = list(client.verify(MODEL))
    assert {update.key for update in updates if update.succeeded} == set(before)
    assert any(update.state == "verifying" for update in updates)
    after = engines(client)
    assert {key: e.created_unix_s for key, e in after.items()} == {key: e.created_unix_s for key, e in before.items()}
    assert any(after[key].latency_ms != before[key].latency_ms for key in before), "no engine was timed again"
    reported = command(daemon, "engines", "verify", "--engine", serving(client)[:12])
    assert (reported.returncode, reported.stderr) == (0, "")
    assert reported.stdout.splitlines()[-1].endswith(": ready")


# --- pin, evict -----------------------------------------------------------------------------------------------------


def test_evict_keeps_serving_engines_and_says_so(daemon: Daemon, client: edged.Client) -> None:
    key = serving(client)
    if not engines(client)[key].bytes:
        pytest.skip("the reference is the fastest engine here, and has no files to evict")
    reported = command(daemon, "engines", "evict", "--engine", key)
    assert (reported.returncode, reported.stdout) == (1, "")
    assert reported.stderr.startswith(f"edged: engine {key[:12]} is needed")
    assert reported.stderr.count("\n") == 1
    with pytest.raises(Refused, match="nothing was evicted"):
        client.evict(engine=key)
    assert engines(client)[key].state == "serving"


def evicted(client: edged.Client, key: str) -> bool:
    """Evict an engine; return False while it is compared with the serving engine and therefore needed."""
    try:
        return client.evict(engine=key) == [key]
    except Refused:
        return False


@pytest.mark.long
def test_evict_all_keeps_pinned_engines(daemon: Daemon, client: edged.Client) -> None:
    key = spare(client)
    assert client.pin(engine=key) == [key]
    assert engines(client)[key].pinned
    assert "pinned" in command(daemon, "engines", "list").stdout
    with pytest.raises(Refused, match="unpin it first"):
        client.evict(engine=key)
    assert key not in client.evict(everything=True)
    assert client.unpin(engine=key) == [key]
    assert not engines(client)[key].pinned
    if engines(client)[key].bytes:
        wait_for("the engine is not needed any more and is evicted", lambda: evicted(client, key))
    gone = engines(client)[key]
    assert (gone.state, gone.bytes) == ("evicted", 0)
    assert [e.what.bytes > 0 for e in client.events() if isinstance(e.what, events.EngineEvicted) and e.engine == key]
    updates = list(client.rebuild(MODEL))
    assert all(update.succeeded for update in updates if update.done)
    assert engines(client)[key].bytes > 0


@pytest.mark.long
def test_pin_survives_a_restart(daemon: Daemon) -> None:
    with daemon.client() as client:
        key = spare(client)
        client.pin(engine=key)
    assert daemon.stop() == 0
    daemon.start()
    daemon.settled(MODEL)
    with daemon.client() as client:
        assert engines(client)[key].pinned
        client.unpin(engine=key)


# --- invalid commands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["rebuild", "verify", "cancel", "pin", "unpin", "evict"])
def test_command_without_a_matching_engine_is_refused(client: edged.Client, verb: str) -> None:
    act = getattr(client, verb)
    with pytest.raises(ModelNotFound, match="'nobody'"):
        act("nobody")
    with pytest.raises(NotFound):
        act(engine="0123456789" * 3)
    for wrong in ({}, {"engine": "abc"}, {"model": MODEL, "everything": True}):
        with pytest.raises(InvalidInput):
            act(**wrong)


# --- watching -------------------------------------------------------------------------------------------------------


def test_status_agrees_with_the_lists(daemon: Daemon, client: edged.Client) -> None:
    status, listed = client.status(), engines(client)
    assert (status.models, status.serving, status.alarms, status.paused) == (1, 1, (), "")
    assert status.engines == sum(engine.bytes > 0 for engine in listed.values())
    assert status.engine_bytes == sum(engine.bytes for engine in listed.values())
    assert status.free_bytes > 0
    assert status.uptime_s > 0
    assert status.epoch == next(iter(client.events())).epoch
    assert command(daemon, "status").returncode == 0
    key = spare(client)
    with client.rebuild(engine=key, force=True) as updates:
        (making,) = wait_for("the build is reported", lambda: client.status().building)
        assert (making.key, making.model, making.done) == (key, MODEL, False)
        assert [update.succeeded for update in updates][-1]


def test_model_that_cannot_be_served_raises_an_alarm(daemon: Daemon, client: edged.Client) -> None:
    broken = daemon.models / "broken.onnx"
    broken.write_text("This is not a model.\n")
    wait_for("the alarm is raised", lambda: [a for a in client.status().alarms if a.model == "broken"])
    (model,) = [model for model in client.models() if model.name == "broken"]
    assert [alarm.kind for alarm in model.alarms] == ["unserved"]
    reported = command(daemon, "status")
    assert reported.returncode == 1
    assert "broken" in reported.stdout
    broken.unlink()
    wait_for("the alarm is cleared", lambda: not client.status().alarms)
    kinds = [event.kind for event in client.events() if event.model == "broken"]
    assert [kind for kind in kinds if kind.startswith("alarm")] == ["alarm_raised", "alarm_cleared"]


def test_events_resume_after_a_restart(daemon: Daemon) -> None:
    with daemon.client() as client:
        last = list(client.events())[-1]
        assert list(client.events(last.sequence, epoch=last.epoch)) == []
    assert daemon.stop() == 0
    daemon.start()
    daemon.settled(MODEL)
    with daemon.client() as client:
        since = list(client.events(last.sequence, epoch=last.epoch))
        assert since[0].sequence == 1
        assert {event.epoch for event in since} == {client.status().epoch} != {last.epoch}
        reported = command(daemon, "events", "--after", f"{last.epoch}:{last.sequence}")
        assert reported.stdout.splitlines()[0].startswith("1 ")
        assert "model small was read" in reported.stdout


def test_command_is_reported_as_an_event(client: edged.Client) -> None:
    key = spare(client)
    client.pin(engine=key)
    client.unpin(engine=key)
    verbs = [event.what.verb for event in client.events() if isinstance(event.what, events.Commanded)]
    assert verbs[-2:] == ["pin", "unpin"]


@pytest.mark.long
def test_build_by_command_serves_the_reference_until_the_command() -> None:
    with Daemon(builds=False) as daemon, daemon.client() as client:
        onnx_files.scale(daemon.models / "scale.onnx", 2.0)
        daemon.ready("scale")
        reference = wait_for(
            "the reference was timed", lambda: next((e for e in client.engines("scale") if e.latency_ms), None)
        )
        others = [engine for engine in client.engines("scale") if engine.key != reference.key]
        assert others
        assert {engine.state for engine in others} <= {"absent", "unsuitable"}
        waiting = next(engine for engine in others if engine.state == "absent")
        assert waiting.reason == "built by command only (engines.build): edged engines rebuild scale"
        with client.rebuild(engine=waiting.key) as progress:
            assert list(progress)[-1].succeeded
        assert client.status().building == ()
