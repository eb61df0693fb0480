"""Damaged state on disk: the daemon determines it again and gives the right answers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edged.shapes import MODEL_PATH
from edged.shapes.scene import Scene
from edged.store import sealed
from edged.store.record import EngineRecord, Speed
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, learn_all, wait_for
from tests.integration.detector_cache import DetectorCache

_PICTURE = Scene(3).frame(0)[0]


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.mark.long
def test_start_with_a_flipped_bit_in_every_state_file_serves_the_same_answers(known: DetectorCache) -> None:
    daemon, chance = Daemon("--model", f"shapes={MODEL_PATH}", builds=False), random.Random(7)
    with daemon:
        daemon.ready("shapes")
        with daemon.client() as client:
            right = client.infer("shapes", _PICTURE).detections
        for _ in range(2):
            daemon.stop()
            known.copy("built", learn_all, daemon.cache)
            files = [path for path in daemon.cache.rglob("*") if path.is_file() and path.stat().st_size]
            kinds = {"inspections", "admissions", "runtimes", "golden"}
            assert kinds <= {path.parent.name for path in files}
            for path in files:
                flip(path, chance)
            daemon.start()
            daemon.ready("shapes")
            with daemon.client() as client:
                assert client.infer("shapes", _PICTURE).detections == right
                assert not client.status().alarms


def replace_engine(place: Path, other: Path) -> str:
    """Replace an engine's files with another model's, with a record that fits them. Return the record's edition."""
    record, foreign = (sealed.unseal((each / "record.json").read_bytes(), EngineRecord) for each in (place, other))
    for file in place.iterdir():
        file.unlink()
    for name in foreign.files:
        shutil.copy(other / name, place / name)
    fast = Speed(1, 0, 0.1, 0.1, 1.0)  # the daemon opens the fastest engine
    record = msgspec.structs.replace(record, files=foreign.files, speeds=(fast,))
    (place / "record.json").write_bytes(sealed.seal(record, indent=2))
    return record.edition


@pytest.mark.long
def test_start_with_another_models_engine_in_a_fitting_record_answers_right_alarms_and_rebuilds() -> None:
    daemon, picture = Daemon(), np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    for name, layers in (("m", 4), ("other", 5)):
        (daemon.models / name / "1").mkdir(parents=True)
        onnx_files.convolutions(daemon.models / name / "1" / "model.onnx", layers)
        (daemon.models / name / "edged.toml").write_text('backends = "onnxruntime"\n')
    with daemon:
        built = {name: [e for e in daemon.settled(name) if e.bytes] for name in ("m", "other")}
        (engine,), (other,) = built["m"], built["other"]
        with daemon.client() as client:
            right, wrong = (client.infer(name, picture).outputs["y"] for name in built)
        assert not np.allclose(right, wrong, rtol=0.1)
        daemon.stop()
        engines = daemon.cache / "engines"
        edition = replace_engine(engines / engine.key, engines / other.key)
        daemon.start()
        with daemon.client() as client:

            def is_over() -> bool:
                daemon.ready("m")
                np.testing.assert_allclose(client.infer("m", picture).outputs["y"], right, rtol=1e-3, atol=1e-4)
                return any(event.kind == "alarm_cleared" for event in client.events())

            daemon.ready("m")
            wait_for("the engine is built again", is_over)
            kinds = [event.what.alarm for event in client.events() if event.kind == "alarm_raised"]
            opened = [event.engine for event in client.events() if event.kind == "engine_serves" and event.model == "m"]
        assert kinds == ["engine_mismatch"]
        assert opened[0] not in (engine.key, "")
        daemon.settled("m")
        record = sealed.unseal((engines / engine.key / "record.json").read_bytes(), EngineRecord)
        assert record.verdict.accepted
        assert record.edition != edition
