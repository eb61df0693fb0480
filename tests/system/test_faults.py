"""Full, broken or read-only disks, and altered files: one clear error, no leftovers, and serving continues."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edged.backends import registry
from edged.backends.contract import REFERENCE, Recipe, Session
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint
from edged.engines.builder import Builder, Task
from edged.engines.eviction import EvictionClass, StoredEngine, choose
from edged.errors import EdgedError, EngineDamaged, OutOfSpace
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests import models
from tests.system import disks
from tests.system.torture_peer import Order as Deeds
from tests.system.torture_peer import Outcome, Step, do, key_of, recorded
from tests.system.torture_state import Peer, State, found, look, peers, require_tracing, scenario
from tests.waiting import run

pytestmark = pytest.mark.timeout(300)
_LIMITS = Limits(seconds=110, memory_mb=4096)
_BUILT = Recipe("onnxruntime")
_OTHER = Recipe("onnxruntime", optimization="basic")


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with peers(1) as (peer,):
        yield peer


# -- one call fails -------------------------------------------------------------------------------------------------


def after_faults(order: Deeds, outcome: Outcome) -> list[State]:
    """Return the possible states of a store after some steps failed. A failed step is done or not done; so is a
    removal, which never fails, although the disk may keep the files."""
    possible = [State({}, set())]
    for step, end in zip(order.steps, outcome.ends, strict=True):
        then = [state.after(step) for state in possible]
        if end == "f" or step.do in ("remove", "damaged", "strip"):
            then += [*possible, *(state.after(Step("damaged", step.name)) for state in possible)]
        possible = [state for index, state in enumerate(then) if state not in then[:index]]
    return possible


def fail_at(peer: Peer, root: Path, call: str, when: int, error: str) -> bool:
    """Run the scenario with one failing call; return False if the scenario ended before that call."""
    order = Deeds(str(root), scenario(), None, call, when, fault=error)
    outcome = peer.run(order)
    assert not outcome.complaint, outcome.complaint
    assert outcome.status == 0
    Store(root)  # removes what could not be removed before
    store, possible = look(root), after_faults(order, outcome)
    found(store, dict.fromkeys("abcd", possible))
    shutil.rmtree(root)
    return outcome.is_hit


_FALLIBLE = {
    **dict.fromkeys(("fsync", "write", "fchmod", "rename", "renameat2", "link", "unlink", "unlinkat"), "EIO"),
    **dict.fromkeys(("rmdir", "utimensat", "flock", "newfstatat", "read", "getdents64"), "EIO"),
    **dict.fromkeys(("mkdir",), "ENOSPC"),
    **dict.fromkeys(("openat",), "EMFILE"),
}


def test_store_failed_call_fails_one_step_only(peer: Peer, tmp_path: Path) -> None:
    require_tracing()
    for call in ("fsync", "rename"):
        for when in (1, 5, 12):
            assert fail_at(peer, tmp_path / "store", call, when, "EIO")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_store_every_failed_call_fails_one_step_only(peer: Peer, tmp_path: Path) -> None:
    require_tracing()
    counts = {}
    for call, error in _FALLIBLE.items():
        when = 1
        while fail_at(peer, tmp_path / "store", call, when, error):
            when += 1
        counts[call] = when - 1
    print(f"{sum(counts.values())} calls failed: {counts}")
    assert all(counts.values())


# -- engines --------------------------------------------------------------------------------------------------------


def read(path: Path) -> Model:
    return Model.of(plain_entry("m", path, {}), inspect(path))


def commit(store: Store, name: str, number: int = 0) -> None:
    do(store, Step("commit", name, number))


def make(builder: Builder, model: Model, recipe: Recipe) -> EngineRecord:
    async def room(need: int) -> int:
        return 0

    task = Task(model, recipe, EngineKey.of(model.digest, recipe, Fingerprint()))
    return run(builder.make(task, lambda progress: None, room), 120)


@pytest.fixture(params=[pytest.param("tmpfs", marks=pytest.mark.long), "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    if request.param == "tmpfs":
        with disks.tmpfs(tmp_path / "disk", 8) as place:
            yield place
    else:
        with disks.mounted(disks.ext4(tmp_path / "image", 8), tmp_path / "disk") as place:
            yield place


def test_full_disk_fails_builds_in_one_line_and_keeps_and_evicts_engines(disk: Path, tmp_path: Path) -> None:
    root = disk / "cache"
    store, model = Store(root), read(models.save(models.conv(), tmp_path / "model.onnx"))
    builder = Builder(store, root, _LIMITS)
    built, reference = (EngineKey.of(model.digest, r, Fingerprint()).digest for r in (_BUILT, REFERENCE))
    make(builder, model, REFERENCE)
    assert make(builder, model, _BUILT).verdict.accepted
    before = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    other = read(models.save(models.conv(seed=1), tmp_path / "other.onnx"))
    filler = disks.fill(disk)
    for each, recipe in ((model, _OTHER), (model, REFERENCE), (other, REFERENCE)):
        with pytest.raises(EdgedError) as raised:
            make(builder, each, recipe)
        assert "\n" not in str(raised.value)
    assert {path: path.stat().st_size for path in root.rglob("*") if path.is_file()} == before
    again = look(root)
    assert again.records() == store.records()
    registry.load("onnxruntime").open(model.order(_BUILT, again.artefact(built))).close()
    with pytest.raises(OSError):
        again.amend(again.records()[built])
    again.touch(built)
    again.strip(msgspec.structs.replace(again.records()[built], evicted=True))
    again.remove(reference)
    assert not set(again.records()) - {built}
    assert again.size == 0
    filler.unlink()
    assert make(Builder(look(root), root, _LIMITS), model, _BUILT).verdict.accepted


def test_engine_in_a_lower_overlay_layer_is_replaced_and_removed(tmp_path: Path) -> None:
    lower = tmp_path / "image"
    for name in "abc":
        commit(Store(lower), name)
    with disks.overlay(lower, tmp_path / "container") as root:
        store = look(root)
        commit(store, "a", number=1)
        store.strip(msgspec.structs.replace(store.records()[key_of("b")], evicted=True))
        store.remove(key_of("c"))
        for each in (store, look(root)):
            assert {record.model: record.latency_ms for record in each.records().values()} == {"a": 1, "b": 0}
            assert each.artefact(key_of("a")).files == recorded(("a", 1))
            assert each.artefact(key_of("b")).files == {}
    assert len(look(lower).records()) == 3


def test_read_only_disk_is_reported_and_read(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    commit(Store(root), "a")
    model = read(models.save(models.conv(), tmp_path / "model.onnx"))
    with disks.read_only(root):
        store = Store(root)
        assert store.problem == f"{root}/engines is on a read-only file system"
        store.artefact(key_of("a")).check()
        with pytest.raises(OutOfSpace):
            make(Builder(store, root, _LIMITS), model, _BUILT)
        assert list(store.records()) == [key_of("a")]
    assert look(root).problem == ""


def test_evict_least_recently_used_after_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, real = Store(tmp_path), time.time()
    for jump, name in ((0, "a"), (3e8, "b"), (-3e8, "c"), (-1e9, "a"), (10, "d")):
        monkeypatch.setattr(time, "time", lambda now=real + jump: now)
        commit(store, name)
    store = Store(tmp_path)
    sizes = {record.model: record.size for record in store.records().values()}
    held = [
        StoredEngine(key_of(name), sizes[name] + 1, store.used(key_of(name)), EvictionClass.STALE) for name in sizes
    ]
    assert choose(held, 1 << 60, 0).short
    assert choose(held, sum(sizes.values()) + 4, 0).evict == tuple(key_of(name) for name in "bcad")


# -- altered files --------------------------------------------------------------------------------------------------


def answer(session: Session, model: Model) -> np.ndarray:
    spec = model.inspection.signature.inputs[0]
    shape = tuple(spec.dims)
    try:
        return session.infer({spec.name: np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)})["y"]
    finally:
        session.close()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_open_engine_with_an_altered_byte_is_refused(tmp_path: Path, backend: str) -> None:
    model = read(models.save(models.conv(channels=16), tmp_path / "model.onnx"))
    recipe, store = Recipe(backend), Store(tmp_path / "cache")
    assert make(Builder(store, store.root, _LIMITS), model, recipe).verdict.accepted
    artefact = store.artefact(EngineKey.of(model.digest, recipe, Fingerprint()).digest)
    order = model.order(recipe, artefact)
    runtime = registry.load(backend)
    expected = answer(runtime.open(order), model)
    for name, record in artefact.files.items():
        place = Path(artefact.root) / name
        whole = place.read_bytes()
        spots = {round(i * (record.size - 1) / 99) for i in range(100)}  # in every region, with both ends
        for spot in sorted(spots):
            altered = bytearray(whole)
            altered[spot] ^= 1 << spot % 8
            place.write_bytes(altered)
            with pytest.raises(EngineDamaged):
                runtime.open(order)
        for length in (0, 1, record.size // 2, record.size - 1):
            place.write_bytes(whole[:length])
            with pytest.raises(EngineDamaged):
                runtime.open(order)
        place.write_bytes(whole)
    assert np.array_equal(answer(runtime.open(order), model), expected)


@pytest.mark.long
def test_openvino_alone_accepts_altered_weights(tmp_path: Path) -> None:
    """A runtime's own check is not enough: it gives wrong answers for an engine that edged refuses."""
    openvino = pytest.importorskip("openvino")
    model = read(models.save(models.conv(channels=16), tmp_path / "model.onnx"))
    recipe, store = Recipe("openvino"), Store(tmp_path / "cache")
    make(Builder(store, store.root, _LIMITS), model, recipe)
    artefact = store.artefact(EngineKey.of(model.digest, recipe, Fingerprint()).digest)
    (name,) = artefact.files
    place = Path(artefact.root) / name
    blob = bytearray(place.read_bytes())
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)  # the same as in `models.conv`
    start = bytes(blob).find(weights[:1, :1, 0, :2].tobytes())
    assert start >= 0, "the weights are not in the blob as they were in the model"
    picture = np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    core = openvino.Core()
    right = core.import_model(bytes(blob), "CPU")({0: picture})[0].copy()
    blob[start + 3] ^= 0x40  # an exponent
    wrong = core.import_model(bytes(blob), "CPU")({0: picture})[0].copy()  # no error
    assert not np.allclose(right, wrong)
    place.write_bytes(blob)
    with pytest.raises(EngineDamaged):
        registry.load("openvino").open(model.order(recipe, artefact))
