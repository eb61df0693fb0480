"""What the box does right now, as `GetLoad` tells it: out of what is counted for metrics and people anyway."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator

from edged.config import Health
from edged.device import system
from edged.device.root import Root
from edged.engines import report
from edged.engines.alarms import Alarm
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.message_mapper import to_message
from edged.metrics.box import Readings, Sensors
from edged.metrics.process import resident_bytes
from edged.metrics.tally import Tally
from edged.proto import operations_pb2 as pb
from edged.serving.camera import Cameras
from edged.serving.link import HostLink

_POWER_MODE = "jetson.power_mode"


class LoadReader:
    """Looks at a daemon."""

    def __init__(
        self,
        controller: Controller,
        cameras: Cameras,
        tally: Tally,
        sensors: Sensors | None = None,
        root: Root | None = None,
    ) -> None:
        self._controller, self._cameras, self._tally = controller, cameras, tally
        self._root = root or Root()
        self._sensors = sensors or Sensors(self._root)

    async def read(self) -> pb.GetLoadResponse:
        """Everything, as of now. Sensors may be slow, so they are read in a thread."""
        readings, box = await asyncio.to_thread(lambda: (self._sensors.read(), system.read_memory(self._root)))
        controller, now = self._controller, time.monotonic()
        alarms = controller.alarms.active()
        return pb.GetLoadResponse(
            status=to_message(report.status(controller), pb.GetStatusResponse),
            mono_s=now,
            models=[
                model(name, planned, alarms, controller.health, now)
                for name, planned in sorted(controller.models.items())
            ],
            cameras=[to_message(each, pb.CameraStatus) for each in self._cameras.reports()],
            hosts=list(hosts(controller.links(), self._tally)),
            device=_device(controller, readings, box),
        )


def model(name: str, planned: PlannedModel, alarms: Iterable[Alarm], asking: Health, now: float) -> pb.ModelLoad:
    """One model; `now` in monotonic seconds."""
    status = report.public_readiness(planned, asking)
    slot, statistics = planned.slot, planned.slot.statistics
    message = pb.ModelLoad(
        name=name,
        state=status.state.value,
        reason=status.reason,
        degraded=sorted({alarm.kind.value for alarm in alarms if alarm.model == name}),
        answered=statistics.success.count,
        failed=statistics.fail.count,
        waiting=slot.waiting,
    )
    if slot.current is not None:
        engine = slot.current.engine
        message.engine, message.backend = engine.key, engine.backend
        planned_engine = planned.engines.get(engine.key)
        if planned_engine is not None:  # one of the device as it was is in no plan
            message.precision, message.device = planned_engine.recipe.precision, planned_engine.recipe.device
            if planned_engine.usual_ms:
                message.baseline_ms = planned_engine.usual_ms
        median = slot.current.pace.median(now)
        if median is not None:
            message.infer_ms = median
    return message


def hosts(links: Iterable[HostLink], tally: Tally) -> Iterator[pb.HostLoad]:
    """Those that live; then, without a process, those that were lost and are not there again."""
    alive = sorted(links, key=lambda link: (link.backend, link.pid))
    for link in alive:
        yield pb.HostLoad(
            backend=link.backend,
            pid=link.pid,
            resident_bytes=resident_bytes(link.pid) or 0,
            limit_bytes=link.memory_mb << 20,
            sessions=len(link.sessions),
            losses=tally.losses[link.backend],
        )
    for backend in sorted(set(tally.losses) - {link.backend for link in alive}):
        yield pb.HostLoad(backend=backend, losses=tally.losses[backend])


def _device(controller: Controller, readings: Readings, box: system.Memory) -> pb.DeviceLoad:
    return pb.DeviceLoad(
        cpu_busy=controller.load.busy,
        memory_bytes=box.total,
        memory_free_bytes=box.free,
        temperatures=readings.temperatures,
        power_mode=controller.fingerprint.facts.get(_POWER_MODE, ""),
        daemon_bytes=resident_bytes(os.getpid()) or 0,
    )
