"""Processes are killed at any moment while they change a store: acknowledged changes stay, and no change is partial."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edged.device.fingerprint import Fingerprint
from edged.jobs.inspect import inspect
from edged.models.inspection import Inspection
from edged.store.key import EngineKey
from edged.store.store import Store
from edged.verification import golden
from tests import models
from tests.system.disks import ext4, mounted
from tests.system.torture_peer import RECIPES, Order, Outcome, Step
from tests.system.torture_state import Peer, State, found, look, peers, require_tracing, scenario
from tests.waiting import wait

_KILLED = -9
_NAMES = "abcdef"
_DEEDS = ("commit",) * 8 + (
    *("adopt", "amend", "strip", "remove", "damaged"),
    *("pin", "unpin", "touch", "abandon", "rescan"),
)
_HARSH = "loop,noauto_da_alloc"  # without it, ext4 writes a file when it is renamed over another
_DURABLE = ("commit", "adopt", "amend", "strip", "pin")  # these return once the change is on the disk
# System calls that change a file system, and those between them.
_CALLS = (
    *("openat", "write", "fsync", "fchmod", "utimensat", "mkdir", "rename", "renameat2", "link"),
    *("unlink", "unlinkat", "rmdir", "flock", "close"),
)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with peers(1) as (peer,):
        yield peer


def judge(root: Path, before: State, order: Order, outcome: Outcome, only: str = _NAMES) -> State:
    """Return the store's state. It must be the acknowledged one, with or without the interrupted step."""
    assert not outcome.complaint, outcome.complaint
    state = before
    for step in order.steps[: outcome.done]:
        state = state.after(step)
    possible = [state]
    if outcome.begun > outcome.done:
        possible.append(state.after(order.steps[outcome.done]))
        if not order.can_exchange:  # the old engine is removed before the new one appears
            possible.append(state.after(Step("damaged", order.steps[outcome.done].name)))
    return found(look(root), dict.fromkeys(only, possible))


def steps(dice: random.Random, names: str, first: int, count: int = 500) -> list[Step]:
    """Return random steps, numbered so that no two have the same content."""
    return [
        Step(dice.choice(_DEEDS), dice.choice(names), first + index, dice.choice(names))  # type: ignore[arg-type]
        for index in range(count)
    ]


# -- at random ------------------------------------------------------------------------------------------------------


def torture(peer: Peer, root: Path, rounds: int, seed: int, can_exchange: bool = True) -> None:
    """Kill a process again and again on the same store."""
    dice, state, killed, busy, done = random.Random(seed), State({}, set()), 0, 0, 0
    for number in range(rounds):
        seconds = dice.choice((0.003, 0.02, 0.08)) * dice.random()
        order = Order(str(root), steps(dice, _NAMES, number * 1000), seconds, can_exchange=can_exchange)
        outcome = peer.run(order)
        assert outcome.status in (_KILLED, 0)
        killed += outcome.status == _KILLED
        busy += outcome.begun > outcome.done
        done += outcome.done
        state = judge(root, state, order, outcome)
    print(f"{rounds} rounds: {killed} killed, {busy} of them during a step; {done} steps done")
    assert killed
    assert busy


def test_store_process_killed_at_random_leaves_a_valid_store(peer: Peer, tmp_path: Path) -> None:
    torture(peer, tmp_path, 100, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_store_process_killed_at_random_many_times_leaves_a_valid_store(peer: Peer, tmp_path: Path) -> None:
    torture(peer, tmp_path / "exchanging", 600, seed=2)
    torture(peer, tmp_path / "not-exchanging", 200, seed=3, can_exchange=False)


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_store_two_killed_processes_do_not_affect_each_other(tmp_path: Path, rounds: int) -> None:
    dice, halves = random.Random(4), (_NAMES[:3], _NAMES[3:])
    states = [State({}, set()) for _ in halves]
    with peers(2) as both:
        for number in range(rounds):
            orders = [
                Order(str(tmp_path), steps(dice, half, number * 1000), 0.005 + 0.06 * dice.random()) for half in halves
            ]
            for peer, order in zip(both, orders, strict=True):
                peer.begin(order)
            outcomes = [peer.end() for peer in both]
            states = [judge(tmp_path, *each) for each in zip(states, orders, outcomes, halves, strict=True)]


# -- at every system call -------------------------------------------------------------------------------------------


def plant(root: Path) -> None:
    """Add what a start has to clean up: a stray stage, and a partial entry."""
    (root / "staging" / "stray" / "engine").mkdir(parents=True)
    (root / "staging" / "stray" / "engine" / "half").write_bytes(b"half")
    (root / "engines" / "half").mkdir(parents=True)
    (root / "engines" / "half" / "blob").write_bytes(b"half")


def kill_at(peer: Peer, root: Path, call: str, when: int, can_exchange: bool) -> bool:
    """Run the scenario once; return True if the process was killed."""
    plant(root)
    order = Order(str(root), scenario(), None, call, when, can_exchange)
    outcome = peer.run(order)
    if not outcome.begun:  # killed during the cleanup: the planted files may still exist
        Store(root)
    judge(root, State({}, set()), order, outcome)
    assert outcome.status in (_KILLED, 0)
    shutil.rmtree(root)
    return outcome.status == _KILLED


@pytest.mark.parametrize("can_exchange", [True, False])
def test_store_process_killed_at_some_system_calls_leaves_a_valid_store(
    peer: Peer, tmp_path: Path, can_exchange: bool
) -> None:
    require_tracing()
    for call in ("rename", "renameat2", "mkdir", "fsync"):
        for when in (1, 4, 9):
            kill_at(peer, tmp_path / "store", call, when, can_exchange)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("can_exchange", [True, False])
def test_store_process_killed_at_any_system_call_leaves_a_valid_store(
    peer: Peer, tmp_path: Path, can_exchange: bool
) -> None:
    require_tracing()
    counts = {}
    for call in _CALLS:
        when = 1
        while kill_at(peer, tmp_path / "store", call, when, can_exchange):
            when += 1
        counts[call] = when - 1
    print(f"{sum(counts.values())} kills: {counts}")
    assert all(counts[call] for call in ("openat", "write", "fsync", "mkdir", "rename", "unlinkat"))
    assert bool(counts["renameat2"]) == can_exchange


# -- a power cut ----------------------------------------------------------------------------------------------------


def judge_power_cut(root: Path, before: State, order: Order, outcome: Outcome) -> State:
    """As `judge`, but changes that do not wait for the disk may be undone: removals and unpins."""
    assert not outcome.complaint, outcome.complaint
    states = [before]
    for step in order.steps[: outcome.begun]:
        states.append(states[-1].after(step))
    acknowledged = order.steps[: outcome.done]
    possible = {}
    for name in _NAMES:
        waited_for = [0, *(n + 1 for n, s in enumerate(acknowledged) if s.name == name and s.do in _DURABLE)]
        possible[name] = states[waited_for[-1] :]
    return found(look(root), possible)


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_store_power_cut_leaves_a_valid_store(peer: Peer, tmp_path: Path, rounds: int) -> None:
    """Writes that have not reached the disk image when a process is killed are lost; the next round uses that image."""
    dice, state, done = random.Random(5), State({}, set()), 0
    image, place = ext4(tmp_path / "image", 32), tmp_path / "mounted"
    root = place / "store"
    for number in range(rounds):
        order = Order(str(root), steps(dice, _NAMES, number * 1000), 0.3 * dice.random())
        later = image.with_name(f"image{number}")
        with mounted(image, place, _HARSH):
            outcome = peer.run(order)
            shutil.copyfile(image, later)
        image.unlink()
        image = later
        done += outcome.done
        with mounted(image, place, _HARSH):
            state = judge_power_cut(root, state, order, outcome)
    print(f"{rounds} power cuts; {done} steps done")
    assert done


# -- whole builds ---------------------------------------------------------------------------------------------------


def _children_of(pid: int) -> list[str]:
    """Return the job servers with the process on their command line, and their children, which have the same one."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if b"edged.jobs.server" in words and str(pid).encode() in words:
                found.append(place.parent.name)
    return found


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_builder_killed_at_random_leaves_a_valid_store_and_no_process(peer: Peer, tmp_path: Path) -> None:
    path, root = models.save(models.conv(), tmp_path / "model.onnx"), tmp_path / "cache"
    digest = inspect(path).digest
    builds = [Step("build", "m", number, str(path)) for number in range(len(RECIPES))]
    keys = [EngineKey.of(digest, recipe, Fingerprint()).digest for recipe in RECIPES]
    dice, made, cut = random.Random(6), set[str](), 0
    for number in range(30):
        seconds = None if number == 29 else 2.5 * dice.random()
        order = Order(str(root), dice.sample(builds, len(builds)), seconds)
        outcome = peer.run(order)
        assert not outcome.complaint, outcome.complaint
        cut += outcome.begun > outcome.done
        made |= {keys[step.number] for step in order.steps[: outcome.done]}
        maybe = {keys[step.number] for step in order.steps[: outcome.begun]}
        store = look(root)
        assert made <= set(store.records()) <= made | maybe
        made = set(store.records())
        for key, record in store.records().items():
            assert record.verdict.accepted == (record.recipe.backend != "null")
            assert record.parts == EngineKey.of(digest, record.recipe, Fingerprint()).parts
            assert key == EngineKey(record.parts).digest
        for kept in (root / "golden").glob("[!.]*"):
            assert golden.load(kept).samples
        for kept in (root / "inspections").glob("[!.]*"):
            assert msgspec.json.decode(kept.read_bytes(), type=Inspection).digest == digest
        wait(lambda pid=outcome.pid: not _children_of(pid), "its children have exited")
    print(f"{cut} builds were cut off; {sum(path.name.startswith('.') for path in root.rglob('*'))} temporary files")
    assert made == set(keys)
    assert cut
