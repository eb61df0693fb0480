"""The time of store operations as the store grows: start, lists, plan, eviction.

python tests/bench/store.py [ENGINES ...]

Prints milliseconds on this machine. The last column compares each size with the size before: x10 for ten times as many
engines is linear growth.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edged.backends.artefact import Artefact
from edged.config import Engines
from edged.device.fingerprint import Fingerprint, probe
from edged.engines import report
from edged.engines.desired import desired
from edged.engines.eviction import EvictionManager
from edged.engines.plan import PlannedModel, Planner
from edged.events import EventLog
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.serving.slot import Slot
from edged.shapes import MODEL_PATH
from edged.store.record import BuildFacts, EngineRecord, Verdict
from edged.store.store import Store
from tests.waiting import run

_SIZES = (50, 500, 5000)
_BLOB = bytes(4096)
_MODELS = 10  # their engines are needed; those of other models, and for earlier states of the device, are not
_MB = 1 << 20


def of(name: str, read: Model) -> Model:
    """Return a copy of a model with different content."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Model.of(plain_entry(name, MODEL_PATH, {}), msgspec.structs.replace(read.inspection, digest=digest))


def fill(root: Path, count: int, read: Model, facts: Fingerprint) -> None:
    """Add engines of many models, for the present device and for its state before each of nine upgrades."""
    Store(root)
    made = 0
    for number in range(count):
        model = of(f"m{number}", read)
        for age in range(10):
            then = Fingerprint({**facts.facts, "runtime.onnxruntime": f"1.{age}", "cpu.model": f"model {age}"})
            for engine in desired(facts if age == 9 else then, model):
                if made == count:
                    return
                folder = root / "engines" / engine.key.digest
                if folder.exists():
                    continue
                folder.mkdir()
                (folder / "blob").write_bytes(_BLOB)
                files = Artefact.seal(folder).files
                build = BuildFacts(1.0, 2.0, 3.0, "bench")
                record = EngineRecord(engine.key.parts, model.name, engine.recipe, files, build, Verdict(True, "", {}))
                (folder / "record.json").write_bytes(msgspec.json.encode(record))
                made += 1


def timed(work: Callable[[], object], times: int = 5) -> float:
    """Return the median duration of a call in milliseconds."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1000


def measure(root: Path, count: int, read: Model, facts: Fingerprint) -> dict[str, float]:
    fill(root, count, read, facts)
    start = timed(lambda: Store(root))
    store, settings = Store(root), Engines()
    assert len(store.records()) == count
    assert store.counts.damaged == 0
    planner = Planner(store, facts, settings)
    models = {}
    for number in range(_MODELS):
        model = of(f"m{number}", read)
        models[model.name] = PlannedModel(model.entry, Slot(model.name))
        planner.plan(models[model.name], model)
    strange = of("strange", read)

    def plan() -> None:
        planner.plan(PlannedModel(strange.entry, Slot("strange")), strange)

    full = msgspec.structs.replace(settings, budget_mb=-(-store.size // _MB), keep_free_mb=0)
    room = EvictionManager(store, full, models, EventLog(), set)
    before = len(store.records())

    def evict() -> None:
        run(room.make(room.budget_bytes - store.size + 1))

    figures = {
        "start": start,
        "list engines": timed(lambda: report.engines(models, store, "")),
        "why, one model": timed(lambda: report.explain(models["m0"], store)),
        "plan a new model": timed(plan),
        "one look": timed(lambda: (room.paused, store.records(), store.size)),
        "one eviction": timed(evict),
    }
    assert before > len(store.records())
    return figures


def main(sizes: tuple[int, ...]) -> None:
    read, facts = Model.of(plain_entry("m", MODEL_PATH, {}), inspect(MODEL_PATH)), probe()
    before: dict[str, float] = {}
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="edged-bench-") as folder:
            figures = measure(Path(folder), count, read, facts)
        print(f"{count} engines")
        for name, milliseconds in figures.items():
            growth = f"  x{milliseconds / before[name]:.1f}" if before else ""
            print(f"  {name:18} {milliseconds:9.2f} ms{growth}")
        before = figures


if __name__ == "__main__":
    main(tuple(int(word) for word in sys.argv[1:]) or _SIZES)
