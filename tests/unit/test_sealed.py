"""Sealed files: every altered byte is detected."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edged.backends.contract import Recipe
from edged.engines.quarantine import Quarantine
from edged.engines.shape_book import Page
from edged.errors import BuildFailed
from edged.ipc.job_messages import Checked, RuntimeSupport
from edged.models.finding import Category, Finding, Stage
from edged.serving.crash_attribution import EngineId
from edged.serving.link import Loss
from edged.store import sealed
from edged.store.attempts import AttemptLog, Attempts
from edged.store.record import BuildFacts, EngineRecord, Speed, Verdict
from edged.verification import golden
from tests.unit.control_room import inspection

_REACH = RuntimeSupport("1.2", 1, 20, 10)
_RECORD = EngineRecord(
    {"format": "1", "model": "a", "recipe.backend": "null"},
    "a",
    Recipe("null"),
    {},
    BuildFacts(1.0, 2.0, 3.0, "test"),
    Verdict(True, "", {"cosine": 0.5}),
    (Speed(1, 0, 4.0, 4.0, 8.0),),
)
_KEPT: list[msgspec.Struct] = [
    inspection(),
    Checked(_REACH, Finding(Stage.SESSION, Category.REFUSED, "no")),
    _REACH,
    Attempts(2, "it crashed"),
    Page(widened=(1.0, 2.5)),
    _RECORD,
]


def flips(data: bytes, seed: int = 5) -> list[bytes]:
    """Return the data with one bit flipped in each byte, cut short, and with one byte too many."""
    chance = random.Random(seed)
    flipped = [data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] for at in range(len(data))]
    return [*flipped, data[:-1], data[: len(data) // 2], b"", data + b"}"]


@pytest.mark.parametrize("content", _KEPT, ids=lambda content: type(content).__name__)
def test_unseal_any_flipped_bit_is_damaged(content: msgspec.Struct) -> None:
    for indent in (0, 2):
        data = sealed.seal(content, indent)
        assert sealed.unseal(data, type(content)) == content
        assert msgspec.json.decode(data, type=type(content)) == content, "people and tools read it as JSON"
        for altered in flips(data):
            with pytest.raises(sealed.Damaged):
                sealed.unseal(altered, type(content))


def test_unseal_file_without_digest_is_damaged_unless_allowed() -> None:
    plain = msgspec.json.encode(_REACH)
    assert sealed.unseal(plain, RuntimeSupport, unsealed=True) == _REACH
    with pytest.raises(sealed.Damaged):
        sealed.unseal(plain, RuntimeSupport)


def test_read_damaged_file_is_counted_and_removed(tmp_path: Path) -> None:
    place, before = tmp_path / "reach.json", sealed.DAMAGED["runtimes"]
    sealed.write(place, _REACH)
    assert sealed.read(place, RuntimeSupport, "runtimes") == _REACH
    place.write_bytes(flips(place.read_bytes())[40])
    assert sealed.read(place, RuntimeSupport, "runtimes") is None
    assert not place.exists()
    assert sealed.read(place, RuntimeSupport, "runtimes") is None
    assert sealed.DAMAGED["runtimes"] == before + 1


def test_golden_answers_with_flipped_bit_are_detected(tmp_path: Path) -> None:
    place = tmp_path / "a.golden"
    array = np.arange(4, dtype=np.float32)
    golden.save(place, [golden.Sample({"x": array}, {"y": array})])
    assert golden.is_whole(place)
    for altered in flips(place.read_bytes()):
        place.write_bytes(altered)
        assert not golden.is_whole(place)
        assert not place.exists()
        place.write_bytes(altered)
        with pytest.raises(BuildFailed):
            golden.load(place)


def _attempts(root: Path) -> object:
    return AttemptLog(root).of("a" * 32)


def _quarantine(root: Path) -> object:
    return Quarantine(root).apart(EngineId("m", "a" * 32))


@pytest.mark.parametrize("load", [_attempts, _quarantine])
def test_record_of_failures_with_flipped_bit_is_empty_or_unchanged(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    nothing = load(tmp_path)
    AttemptLog(tmp_path).failed("a" * 32, "it crashed")
    Quarantine(tmp_path).lost(Loss("died", ((EngineId("m", "a" * 32), True),)))
    files = list(tmp_path.rglob("*.json"))
    whole, kept = load(tmp_path), {path: path.read_bytes() for path in files}
    assert whole != nothing
    for altered in random.Random(2).sample(range(60), 20):
        for path, data in kept.items():
            path.write_bytes(flips(data)[altered])
        assert load(tmp_path) in (nothing, whole)


def test_write_into_a_missing_folder_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "shapes" / "a.json"
    sealed.write(path, _REACH)
    assert sealed.read(path, RuntimeSupport, "shapes") == _REACH
