"""Only the driver beneath changed: an engine of before is tried, and taken over or built anew.

No driver is changed here. The engines of the store are moved to a box of another processor model instead, which is of
the same kind: nothing in an engine says whether it still works there, and trying it does.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from tests.integration.daemon import Daemon
from tests.spoiled import spoil

_OTHER = "Another processor with the same instructions"


@pytest.fixture
def daemon(stored: Daemon) -> Iterator[Daemon]:
    with stored as daemon:
        yield daemon


def elsewhere(daemon: Daemon) -> dict[str, str]:
    """Moves every built engine to a box that differs by one fact; old keys by new ones."""
    moved = {}
    for folder in (daemon.cache / "engines").iterdir():
        record = msgspec.json.decode((folder / "record.json").read_bytes(), type=EngineRecord)
        parts = {**record.parts, "cpu.model": _OTHER}
        key = EngineKey(parts).digest
        record = msgspec.structs.replace(record, parts=parts)
        (folder / "record.json").write_bytes(msgspec.json.encode(record))
        folder.rename(folder.with_name(key))
        moved[key] = folder.name
    return moved


def configured(daemon: Daemon, text: str) -> None:
    path = daemon.home / "edged.toml"
    path.write_text(text)
    daemon._arguments = (*daemon._arguments, "--config", str(path))


@pytest.mark.long
def test_an_engine_that_answers_rightly_is_taken_over_without_a_build(daemon: Daemon) -> None:
    before = {e.key: e for e in daemon.settled("shapes")}
    daemon.stop()
    moved = elsewhere(daemon)
    daemon.start()
    after = [e for e in daemon.settled("shapes") if e.state in ("serving", "ready")]
    built = [e for e in after if e.parts["recipe.optimization"] != "none"]
    assert {e.key for e in built} <= before.keys()
    assert built
    for engine in built:
        assert moved[engine.adopted_from] == engine.key
        assert engine.created_unix_s == before[engine.key].created_unix_s
        assert engine.verdict is not None
        assert engine.verdict.accepted
        assert "after a trial" in engine.reason or engine.state == "serving"


@pytest.mark.long
def test_rebuild_as_a_policy_tries_nothing(daemon: Daemon) -> None:
    before = {e.key: e for e in daemon.settled("shapes")}
    daemon.stop()
    elsewhere(daemon)
    configured(daemon, '[engines]\non_driver_change = "rebuild"\n')
    daemon.start()
    after = [e for e in daemon.settled("shapes") if e.state in ("serving", "ready")]
    for engine in after:
        assert engine.adopted_from == ""
        assert engine.created_unix_s > before[engine.key].created_unix_s


@pytest.mark.long
def test_engine_with_wrong_answers_is_rebuilt(daemon: Daemon) -> None:
    before = {e.key: e for e in daemon.settled("shapes")}
    daemon.stop()
    moved = elsewhere(daemon)
    folders = [daemon.cache / "engines" / key for key, old in moved.items() if is_onnx(before[old].backend)]
    for folder in (folder for folder in folders if (folder / "model.onnx").exists()):
        spoil(folder)
    daemon.start()
    after = [e for e in daemon.settled("shapes") if e.state in ("serving", "ready")]
    engine = next(e for e in after if is_onnx(e.backend) and e.parts["recipe.optimization"] == "all")
    assert engine.adopted_from == ""
    assert engine.created_unix_s > before[engine.key].created_unix_s
    assert engine.verdict is not None
    assert engine.verdict.accepted
    assert "does not work with this device" in daemon.log.read_text()


def is_onnx(backend: str) -> bool:
    return backend == "onnxruntime"
