"""After a change of the driver alone, an engine from before is tried, and adopted or rebuilt.

These tests change no driver. They move the store's engines to a box with another processor model. The effect is the
same: nothing in an engine says whether it still works, so the daemon has to try it.
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
    """Move every built engine to a box that differs by one fact; return the old keys by new ones."""
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
def test_driver_change_adopts_engines_with_right_answers_without_a_build(daemon: Daemon) -> None:
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
        assert "adopted from" in engine.reason or engine.state == "serving"


@pytest.mark.long
def test_driver_change_policy_rebuild_tries_no_engine(daemon: Daemon) -> None:
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
def test_driver_change_rebuilds_an_engine_with_wrong_answers(daemon: Daemon) -> None:
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
