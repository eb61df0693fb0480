"""A runtime that cannot stop, in a loop that never ends: real OpenVINO in a real host. The host is replaced, and what
another model had in it is done again without anybody being told."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import ModelProto

from edged.backends import registry
from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import Order, Recipe
from edged.config.child_limits import HostLimits
from edged.errors import DeadlineExceeded
from edged.jobs.tasks import load_graphs
from edged.models.limits import Bounds
from edged.serving.crash_attribution import EngineId
from edged.serving.link import HostLink, Tenant
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import EngineRef, InputTensor, TensorWork
from edged.vision.family import recognise
from tests import models
from tests.integration import bounded_models as bounded
from tests.waiting import run, until

pytest.importorskip("openvino")

_SECONDS = 0.5
_ENDLESS = 1e9  # rounds; OpenVINO counts in 32 bits
_A_WHILE = bounded.EDGE + 2e5  # rounds enough that the neighbour's engine never waits for the daemon


def built(proto: ModelProto, folder: Path) -> Order:
    """An engine of the model, as a build child leaves it."""
    out = folder / "out"
    out.mkdir(parents=True)
    path = models.save(proto, folder / "model.onnx")
    order = Order(str(path), models.signature(proto), Recipe("openvino"))
    registry.load("openvino").build(order, out, lambda progress: None, load_graphs)
    files = {f.name: FileRecord(hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_size) for f in out.iterdir()}
    return msgspec.structs.replace(order, artefact=Artefact(str(out), files))


class Box:
    """Two models whose engines share a host; when it is lost they are opened in the next. Made within a loop."""

    def __init__(self, orders: dict[str, Order]) -> None:
        self.orders = orders
        self.slots = {name: Slot(name) for name in orders}
        self.links: list[HostLink] = []
        self._opening: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        link = HostLink("openvino", HostLimits(arena_mb=16), self._lost, (tempfile.gettempdir(),))
        self.links.append(link)
        await link.start()
        for name, order in self.orders.items():
            read = recognise(order.signature.inputs, order.signature.outputs, {}, {})
            number = await link.open(order, read, 1, Tenant(EngineId(name, "engine"), self.bounds(name)))
            self.slots[name].install(ServingSession(link, number, EngineRef("engine", "openvino", name, read)))

    def _lost(self, link: HostLink, why: str) -> None:
        for slot in self.slots.values():
            slot.vacate(link)
        if not link.stopping:
            self._opening.append(asyncio.ensure_future(self.open()))

    async def close(self) -> None:
        await asyncio.gather(*self._opening)
        await asyncio.gather(*(link.stop() for link in self.links))

    @staticmethod
    def bounds(name: str) -> Bounds:
        return Bounds(name, _SECONDS if name == "endless" else 60.0)

    def push(self, name: str, x: float) -> TensorWork:
        work = TensorWork((InputTensor("x", "FP32", (1,), np.array([x], np.float32).tobytes()),), None)
        self.slots[name].push(work)
        return work

    async def one(self, x: float) -> float:
        """What the endless model answers."""
        answer = await self.push("endless", x).future
        return float(np.frombuffer(answer.outputs[0].data, np.float32)[0])


@pytest.mark.long
def test_a_host_whose_runtime_never_stops_is_replaced_and_no_other_model_notices(tmp_path: Path) -> None:
    orders = {"endless": built(bounded.endless(), tmp_path / "e"), "good": built(bounded.endless(), tmp_path / "g")}

    async def story() -> None:
        box = Box(orders)
        await box.open()
        done: list[TensorWork] = []
        is_over = False

        async def neighbour() -> None:
            while not is_over:
                work = box.push("good", _A_WHILE)
                await work.future  # an error ends the test
                done.append(work)

        assert await box.one(5) == 5
        neighbours = [asyncio.ensure_future(neighbour()) for _ in range(2)]
        try:
            await until(lambda: len(done) > 1, "the neighbour is served")
            with pytest.raises(DeadlineExceeded, match=rf"'endless' may take {_SECONDS:g} s"):
                await box.one(_ENDLESS)
            before = len(done)
            await until(lambda: len(done) > before + 1, "the neighbour is served by the next host")
            assert await box.one(5) == 5
        finally:
            is_over = True
            await asyncio.gather(*neighbours)
            await box.close()
        first, second = box.links
        assert "did not stop at its limit" in first.lost
        assert first.loss.suspects == ((EngineId("endless", "engine"), True),)
        assert any(work.is_suspect for work in done), "what the neighbour had in the host was done again"
        assert box.slots["good"].failed == 0
        assert second.lost == "was stopped"

    run(story(), 180)
