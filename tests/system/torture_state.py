"""The expected contents of a store after interrupted or failed steps, and the process that does the steps."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edged.store.store import Store
from tests.system.torture_peer import Content, Order, Outcome, Step, key_of, recorded


class Peer:
    """The `torture_peer` process, which forks the children that are killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.system.torture_peer"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, order: Order) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()

    def end(self) -> Outcome:
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline(), type=Outcome)

    def run(self, order: Order) -> Outcome:
        self.begin(order)
        return self.end()

    def close(self) -> None:
        with self._process:  # closes its input, which makes it exit
            pass


@contextlib.contextmanager
def peers(count: int) -> Iterator[list[Peer]]:
    peers = [Peer() for _ in range(count)]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


class Engine(msgspec.Struct, frozen=True):
    """The identity of an engine: the content of its files (None: evicted), and a figure in its record."""

    content: Content | None
    latency: float


class State(msgspec.Struct):
    """The expected contents of a store."""

    engines: dict[str, Engine] = {}
    pins: set[str] = set()

    def after(self, step: Step) -> State:
        """Return the state after a step."""
        engines, pins, name = dict(self.engines), set(self.pins), step.name
        source = engines.get(step.source)
        if step.do == "commit":
            engines[name] = Engine((name, step.number), step.number)
        elif step.do == "adopt" and source is not None and source.content is not None:
            engines[name] = Engine(source.content, step.number)
        elif step.do in ("remove", "damaged"):
            engines.pop(name, None)
        elif name in engines and step.do == "amend":
            engines[name] = Engine(engines[name].content, step.number)
        elif name in engines and step.do == "strip":
            engines[name] = Engine(None, engines[name].latency)
        if step.do == "pin":
            pins.add(name)
        elif step.do in ("unpin", "remove"):
            pins.discard(name)
        return State(engines, pins)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def look(root: Path) -> Store:
    """Open a store; check that every entry is complete and listed, and that nothing else exists."""
    store = Store(root)
    assert store.counts.damaged == 0
    assert not store.problem
    assert names(root / "staging") == []
    assert names(root / "engines") == sorted(store.records())
    assert all(store.is_pinned(name) for name in names(root / "pins"))
    for key, record in store.records().items():
        store.artefact(key).check()
        assert names(root / "engines" / key) == sorted([*record.files, "record.json"])
    return store


def found(store: Store, possible: dict[str, list[State]]) -> State:
    """Return what a store holds. For every name it must match one of the possible states."""
    seen = State({}, set())
    for name, states in possible.items():
        record = store.records().get(key_of(name))
        engines = [state.engines.get(name) for state in states]
        if record is None:
            assert None in engines, f"engine {name} was acknowledged and is lost: {engines}"
        else:
            alike = [each for each in engines if each is not None and _is(record.files, record.latency_ms, each)]
            assert alike, f"engine {name} matches none of {engines}: {record}"
            assert record.evicted == (alike[0].content is None)
            seen.engines[name] = alike[0]
        pinned = store.is_pinned(key_of(name))
        assert pinned in [name in state.pins for state in states], f"the pin of {name}"
        if pinned:
            seen.pins.add(name)
    return seen


def _is(files: object, latency: float | None, engine: Engine) -> bool:
    return latency == engine.latency and files == (recorded(engine.content) if engine.content else {})


def scenario() -> list[Step]:
    """Return a sequence with every kind of step, for names that exist and for names that do not."""
    deeds = [("commit", "a"), ("pin", "a"), ("commit", "b"), ("commit", "a"), ("amend", "a"), ("touch", "a")]
    deeds += [("adopt", "c"), ("strip", "b"), ("commit", "b"), ("abandon", "d"), ("unpin", "a"), ("pin", "c")]
    deeds += [("remove", "c"), ("damaged", "a"), ("commit", "a")]
    return [Step(do, name, number, "a") for number, (do, name) in enumerate(deeds)]  # type: ignore[arg-type]


def require_tracing() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    with subprocess.Popen(["sleep", "60"]) as asleep:
        command = ["timeout", "1", "strace", "-q", "-o", "/dev/null", "-p", str(asleep.pid)]
        tried = subprocess.run(command, capture_output=True, text=True)
        asleep.kill()
    if "ttach" in tried.stderr or "not permitted" in tried.stderr:
        pytest.skip(f"strace cannot trace here: {tried.stderr.strip()}")
