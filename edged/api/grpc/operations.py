"""edged.v1.Operations: queries and commands of operators."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from edged.api.grpc.engines import EngineHandlers
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.upload import receive_upload, repair_upload, upload_folder
from edged.api_types import ModelInfo
from edged.backends import registry
from edged.config import Health
from edged.config.changes import Outcome
from edged.device import system
from edged.device.root import Root
from edged.engines import report
from edged.engines.admission import admit
from edged.engines.alarms import Alarm
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, Refused
from edged.events import Event, ModelRepaired
from edged.files import not_stored
from edged.message_mapper import to_message
from edged.metrics.sources import EventCounts, Readings, Sensors, resident_bytes
from edged.models.repair import short
from edged.proto import operations_pb2 as pb
from edged.serving.camera import Cameras
from edged.serving.link import HostLink

Reload: TypeAlias = Callable[[], Awaitable[Sequence[Outcome]]]

_READ_SECONDS = 10.0  # that the answer to an upload waits for the model to be read


class OperationsService:
    """Reads the controller's plans; changes go through the repository, which the controller then sees."""

    def __init__(self, controller: Controller, cameras: Cameras, counts: EventCounts) -> None:
        self._controller, self._cameras = controller, cameras
        self._load = LoadReader(controller, cameras, counts)
        self.reloads: Reload | None = None  # reloads the configuration, if that is possible

    def service(self) -> Service:
        service = Service("edged.v1.Operations")
        service.unary("ListModels", pb.ListModelsRequest, self.list_models)
        service.upload("AddModel", pb.AddModelRequest, self.add_model)
        service.unary("RemoveModel", pb.RemoveModelRequest, self.remove_model)
        service.unary("GetStatus", pb.GetStatusRequest, self.get_status)
        service.unary("GetLoad", pb.GetLoadRequest, self.get_load)
        service.unary("GetDevice", pb.GetDeviceRequest, self.get_device)
        service.unary("ListCameras", pb.ListCamerasRequest, self.list_cameras)
        service.feed("WatchEvents", pb.WatchEventsRequest, self.watch_events)
        service.unary("RefreshDevice", pb.RefreshDeviceRequest, self.refresh_device)
        service.unary("Reload", pb.ReloadRequest, self.reload)
        EngineHandlers(self._controller).register(service)
        return service

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        models, alarms = self._controller.models, self._controller.alarms.active()
        infos = [self._info(planned, alarms) for _, planned in sorted(models.items())]
        return pb.ListModelsResponse(models=[to_message(info, pb.ModelStatus) for info in infos])

    async def get_status(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return to_message(report.status(self._controller), pb.GetStatusResponse)

    async def get_load(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        return await self._load.read()

    async def get_device(self, request: pb.GetDeviceRequest, context: Context) -> pb.GetDeviceResponse:
        fingerprint = self._controller.fingerprint
        return pb.GetDeviceResponse(facts=fingerprint.facts, digest=fingerprint.digest)

    async def list_cameras(self, request: pb.ListCamerasRequest, context: Context) -> pb.ListCamerasResponse:
        return pb.ListCamerasResponse(cameras=[to_message(each, pb.CameraStatus) for each in self._cameras.reports()])

    async def refresh_device(self, request: pb.RefreshDeviceRequest, context: Context) -> pb.RefreshDeviceResponse:
        changed = await self._controller.refresh()
        parts = [pb.PartChange(part=c.name, old=c.old or "", new=c.new or "") for c in changed]
        return pb.RefreshDeviceResponse(changes=parts)

    async def reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        if self.reloads is None:
            raise Refused("this daemon has no configuration file to reload; start it with --config")
        outcomes = await self.reloads()
        return pb.ReloadResponse(keys=[pb.ReloadedKey(key=o.key, told=o.told, problem=o.problem) for o in outcomes])

    async def watch_events(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[pb.Event]:
        log = self._controller.events
        async with aclosing(log.follow(request.after, request.epoch, request.follow)) as events:
            async for event in events:
                yield event_message(event, log.epoch)

    async def add_model(self, parts: AsyncIterator[pb.AddModelRequest], context: Context) -> pb.ModelStatus:
        """Receive the files, examine the model, and only then add it to the repository."""
        repository = self._controller.repository
        async with upload_folder(repository, "the upload") as folder:
            try:
                header, upload = await receive_upload(parts, folder, self._controller.models)
            except OSError as error:
                raise not_stored("the upload", error) from error
            settings, samples = dict(header.settings), upload.samples
            pictures, installed = tuple(samples.values()), registry.installed(self._facts())
            repaired = await repair_upload(header, upload, settings, installed)
            record = repaired.record if repaired is not None and repaired.record.is_worth_keeping else None
            files = upload.files if repaired is None else repaired.files
            model = next(iter(files.values()))
            await admit(self._controller.builder, model, settings, installed, pictures)
            await asyncio.to_thread(
                repository.add, header.name, files, settings, samples=samples, move=True, record=record
            )
        if record is not None and record.steps:
            self._controller.events.emit(ModelRepaired(record.digest, record.original, short(record)), header.name)
        planned = await self._controller.added(header.name)
        if planned.reading is not None:
            await asyncio.wait([planned.reading], timeout=_READ_SECONDS)
        info = self._info(planned, self._controller.alarms.active())
        if record is not None:  # also if reading it takes longer
            info = msgspec.structs.replace(info, repair=record)
        return to_message(info, pb.ModelStatus)

    async def remove_model(self, request: pb.RemoveModelRequest, context: Context) -> pb.RemoveModelResponse:
        if self._controller.is_configured(request.name):
            raise InvalidInput(f"model {request.name!r} is in the daemon's configuration; remove it there")
        kept = await asyncio.to_thread(self._controller.repository.remove, request.name, delete=request.delete)
        await self._controller.removed(request.name)
        return pb.RemoveModelResponse(kept=str(kept or ""))

    def _info(self, planned: PlannedModel, alarms: tuple[Alarm, ...]) -> ModelInfo:
        shapes = report.shape_report(planned, self._controller.learning.state(planned.entry.name))
        return report.model(planned, alarms, self._controller.health, shapes)

    def _facts(self) -> Mapping[str, str]:
        return self._controller.fingerprint.facts


def event_message(event: Event, epoch: str) -> pb.Event:
    """An event as a message: its kind is the name of a field there, and that field's message has the event's fields."""
    what = msgspec.to_builtins(event.what)
    kind = what.pop("type")
    return pb.Event(
        sequence=event.sequence,
        unix_s=event.unix_s,
        epoch=epoch,
        model=event.model,
        engine=event.engine,
        **{kind: what},
    )


_POWER_MODE = "jetson.power_mode"


class LoadReader:
    """Looks at a daemon."""

    def __init__(
        self,
        controller: Controller,
        cameras: Cameras,
        counts: EventCounts,
        sensors: Sensors | None = None,
        root: Root | None = None,
    ) -> None:
        self._controller, self._cameras, self._event_counts = controller, cameras, counts
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
            hosts=list(hosts(controller.links(), self._event_counts)),
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
        median = slot.current.latency.median(now)
        if median is not None:
            message.infer_ms = median
    return message


def hosts(links: Iterable[HostLink], counts: EventCounts) -> Iterator[pb.HostLoad]:
    """Those that live; then, without a process, those that were lost and are not there again."""
    alive = sorted(links, key=lambda link: (link.backend, link.pid))
    for link in alive:
        yield pb.HostLoad(
            backend=link.backend,
            pid=link.pid,
            resident_bytes=resident_bytes(link.pid) or 0,
            limit_bytes=link.memory_mb << 20,
            sessions=len(link.sessions),
            losses=counts.losses[link.backend],
        )
    for backend in sorted(set(counts.losses) - {link.backend for link in alive}):
        yield pb.HostLoad(backend=backend, losses=counts.losses[backend])


def _device(controller: Controller, readings: Readings, box: system.Memory) -> pb.DeviceLoad:
    return pb.DeviceLoad(
        cpu_busy=controller.load.busy,
        memory_bytes=box.total,
        memory_free_bytes=box.free,
        temperatures=readings.temperatures,
        power_mode=controller.fingerprint.facts.get(_POWER_MODE, ""),
        daemon_bytes=resident_bytes(os.getpid()) or 0,
    )
