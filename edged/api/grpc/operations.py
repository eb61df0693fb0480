"""edged.v1.Operations: queries and commands of operators."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.api.grpc.engine_report import EngineReportHandlers
from edged.api.grpc.frames import FrameHandlers
from edged.api.grpc.gallery import GalleryHandlers
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.upload import receive_upload, repair_upload, upload_folder
from edged.api_types import CameraInfo, DeviceLoad, EngineInfo, ModelInfo, PipelineInfo, StatusInfo
from edged.backends import registry
from edged.cameras.report import camera_info, camera_infos
from edged.cameras.supervisor import CameraSupervisor
from edged.config import Health
from edged.config.changes import Change
from edged.device import system
from edged.device.root import Root
from edged.engines import frame_report, gallery_report, report
from edged.engines.admission import admit, ask_picture, examine, supports
from edged.engines.alarms import Alarm
from edged.engines.commands import Ordered, Selection
from edged.engines.controller import Controller
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness
from edged.errors import InvalidInput, ModelNotFound, ModelRefused, Refused
from edged.events import Event, ModelRepaired
from edged.files import reading
from edged.language.model import PlannedLanguageModel
from edged.message_mapper import to_message
from edged.metrics.sources import EventCounts, Sensors, resident_bytes
from edged.models.entries import ModelEntry
from edged.models.finding import Finding
from edged.models.language import check as check_language
from edged.models.language import is_language
from edged.models.repair import short
from edged.models.settings import merge, validate
from edged.proto import operations_pb2 as pb
from edged.serving.camera import Cameras
from edged.serving.link import HostLink
from edged.tasks import despite_cancelling

Reload: TypeAlias = Callable[[], Awaitable[Sequence[Change]]]

_PICTURES_FPS, _MOST_PICTURES_FPS = 5.0, 60.0
_READ_SECONDS = 10.0  # longest time that the answer to an upload waits until the daemon has read the model


class OperationsService:
    """Answers queries with the state of the controller. Changes go through the controller's commands or the model
    repository."""

    def __init__(
        self, controller: Controller, cameras: Cameras, supervisor: CameraSupervisor, counts: EventCounts
    ) -> None:
        self._controller, self._commands = controller, controller.commands
        self._cameras, self._supervisor = cameras, supervisor
        self._counts, self._sensors = counts, Sensors()
        self.reloads: Reload | None = None  # reloads the configuration; None without a configuration file
        self._testing = asyncio.Lock()
        self.page = ""  # the URL of the page, if it is open
        handlers = (GalleryHandlers(controller), FrameHandlers(controller), EngineReportHandlers(controller))
        self.service = Service(pb.DESCRIPTOR.services_by_name["Operations"], self, *handlers)

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[to_message(info, pb.ModelStatus) for info in self.models()])

    async def list_pipelines(self, request: pb.ListPipelinesRequest, context: Context) -> pb.ListPipelinesResponse:
        return pb.ListPipelinesResponse(pipelines=[to_message(each, pb.PipelineStatus) for each in self.pipelines()])

    async def get_status(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return to_message(self.status(), pb.GetStatusResponse)

    async def get_load(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        """Return the current load."""
        device = await self.device()
        controller, now = self._controller, time.monotonic()
        alarms = controller.alarms.active()
        models = [
            model_load(name, planned, alarms, controller.health, now)
            for name, planned in sorted(controller.models.items())
        ]
        models += [
            ensemble_load(name, planned, alarms, controller.readiness(planned))
            for name, planned in sorted(controller.ensembles.items())
        ]
        return pb.GetLoadResponse(
            status=to_message(self.status(), pb.GetStatusResponse),
            mono_s=now,
            models=models,
            cameras=self._camera_statuses(),
            hosts=host_loads(controller.links(), self._counts),
            device=to_message(device, pb.DeviceLoad),
        )

    async def get_device(self, request: pb.GetDeviceRequest, context: Context) -> pb.GetDeviceResponse:
        fingerprint = self._controller.fingerprint
        found = pb.GetDeviceResponse(facts=fingerprint.facts, digest=fingerprint.digest)
        if request.runtimes:
            async with self._testing:
                tested = await supports(registry.usable(fingerprint.facts))
            found.runtimes.extend(to_message(each, pb.RuntimeSupport) for each in tested)
        return found

    async def list_cameras(self, request: pb.ListCamerasRequest, context: Context) -> pb.ListCamerasResponse:
        return pb.ListCamerasResponse(cameras=self._camera_statuses())

    async def add_camera(self, request: pb.AddCameraRequest, context: Context) -> pb.CameraStatus:
        await self._supervisor.add(request.name, dict(request.settings))
        return self._camera(request.name)

    async def set_camera(self, request: pb.SetCameraRequest, context: Context) -> pb.CameraStatus:
        await self._supervisor.change(request.name, dict(request.settings))
        return self._camera(request.name)

    async def remove_camera(self, request: pb.RemoveCameraRequest, context: Context) -> pb.RemoveCameraResponse:
        await self._supervisor.remove(request.name)
        return pb.RemoveCameraResponse()

    async def watch_pictures(
        self, request: pb.WatchPicturesRequest, context: Context
    ) -> AsyncGenerator[pb.CameraPicture, None]:
        fps = min(request.fps or _PICTURES_FPS, _MOST_PICTURES_FPS)
        if not fps > 0:
            raise InvalidInput(
                f"'fps' is {request.fps:g}; send a positive number, or 0 for {_PICTURES_FPS:g} pictures a second"
            )
        async with aclosing(self._supervisor.pictures(request.camera, fps, request.width)) as pictures:
            async for picture in pictures:
                yield pb.CameraPicture(jpeg=picture.jpeg, unix_s=picture.unix_s)

    async def refresh_device(self, request: pb.RefreshDeviceRequest, context: Context) -> pb.RefreshDeviceResponse:
        changed = await self._controller.refresh()
        parts = [pb.PartChange(part=c.name, old=c.old or "", new=c.new or "") for c in changed]
        return pb.RefreshDeviceResponse(changes=parts)

    async def reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        if self.reloads is None:
            raise Refused("this daemon has no configuration file to reload; start the daemon with --config")
        outcomes = await self.reloads()
        return pb.ReloadResponse(keys=[pb.ReloadedKey(key=o.key, change=o.change, problem=o.problem) for o in outcomes])

    async def watch_events(self, request: pb.WatchEventsRequest, context: Context) -> AsyncGenerator[pb.Event, None]:
        log = self._controller.events
        async with aclosing(log.follow(request.after, request.epoch, request.follow)) as events:
            async for event in events:
                yield event_message(event, log.epoch)

    async def add_model(self, parts: AsyncIterator[pb.AddModelRequest], context: Context) -> pb.ModelStatus:
        """Receive the files, repair the model on request, examine it, and only then add it to the repository."""
        repository = self._controller.repository
        async with upload_folder(repository, "the upload") as folder:
            header, upload = await receive_upload(
                parts, folder, self._controller.models, self._controller.pipelines.counts
            )
            samples, installed = upload.samples, registry.usable(self._controller.fingerprint.facts)
            settings, pictures = dict(header.settings), tuple(samples.values())
            if header.replace and (there := await self._entry(header.name)) is not None:
                settings = merge(there.settings, settings)
                pictures = pictures or tuple(map(Path, there.samples))
            repaired = await repair_upload(header, upload, settings, installed)
            record = repaired.record if repaired is not None and repaired.record.is_worth_keeping else None
            files = upload.files if repaired is None else repaired.files
            model = next(iter(files.values()))
            if is_language(model.name):
                await asyncio.to_thread(check_language, model, settings)
            else:
                await admit(self._controller.builder, model, settings, installed, pictures)
            await asyncio.to_thread(
                partial(repository.add, samples=samples, move=True, record=record, replace=header.replace),
                *(header.name, files, settings),
            )
        if record is not None and record.steps:
            self._controller.events.emit(ModelRepaired(record.digest, record.original, short(record)), header.name)
        info = await self._read_again(header.name)
        if record is not None:  # `info` lacks the record if the daemon has not read the model yet
            info = msgspec.structs.replace(info, repair=record)
        return to_message(info, pb.ModelStatus)

    async def set_model(self, request: pb.SetModelRequest, context: Context) -> pb.ModelStatus:
        """Examine the model with its new settings, and write the settings only if the model passes."""
        controller, name = self._controller, request.name
        if (there := await self._entry(name)) is None:
            raise ModelNotFound(f"no model {name!r}; see: edged models list")
        settings = merge(there.settings, dict(request.settings))
        validate(settings)
        if settings != there.settings:
            if there.is_language:
                await asyncio.to_thread(check_language, Path(there.path), settings)
            else:
                installed, samples = registry.usable(controller.fingerprint.facts), tuple(map(Path, there.samples))
                await admit(controller.builder, Path(there.path), settings, installed, samples)
            await asyncio.to_thread(controller.repository.change, name, settings)
        return to_message(await self._read_again(name), pb.ModelStatus)

    async def _entry(self, name: str) -> ModelEntry | None:
        """Return the repository's entry of a model; None if the repository does not have the model. Raises InvalidInput
        if the model is in the configuration or is an ensemble. Also raises the errors of `files.reading`."""
        if self._controller.is_configured(name):
            raise InvalidInput(f"model {name!r} is in the daemon's configuration; change it there")
        with reading("the models folder"):
            there = (await asyncio.to_thread(self._controller.repository.entries)).get(name)
        if there is not None:
            there.require_file()
        return there

    async def _read_again(self, name: str) -> ModelInfo:
        """Return the status of a model that was just written. Wait up to 10 seconds until the daemon has read the
        model."""
        planned = await self._controller.added(name)
        if isinstance(planned, PlannedLanguageModel):
            await planned.until_read(_READ_SECONDS)
            return report.language(planned)
        if planned.reading is not None:
            await asyncio.wait([planned.reading], timeout=_READ_SECONDS)
        return self._info(planned)

    async def try_model(self, parts: AsyncIterator[pb.AddModelRequest], context: Context) -> pb.TryModelResponse:
        """Receive a model and perhaps a picture, and try the model as `try_file` does."""
        async with upload_folder(self._controller.repository, "the upload") as folder:
            header, upload = await receive_upload(parts, folder, {})
            model = next(iter(upload.files.values()))
            return await self.try_file(model, dict(header.settings), next(iter(upload.samples.values()), None))

    async def try_file(self, model: Path, settings: Mapping[str, str], picture: Path | None) -> pb.TryModelResponse:
        """Examine a model file. If the model reads pictures, run it on `picture`; if `picture` is None, on a picture
        that edged draws. The response says why edged refuses a model. Raises InvalidInput for an unusable picture."""
        builder = self._controller.builder
        installed = registry.usable(self._controller.fingerprint.facts)
        try:
            admission = await examine(builder, model, settings, installed)
        except ModelRefused as error:
            finding = Finding.of(error)
            if finding is None:
                raise
            return _refused(finding)
        answer = pb.TryModelResponse() if admission.finding is None else _refused(admission.finding)
        signature, examined = admission.inspection.signature, admission.model
        answer.backends.update(admission.backends)
        answer.warnings.extend(each.line() for each in admission.warnings)
        answer.inputs.extend(to_message(each, pb.TensorInfo) for each in report.tensors(signature.inputs))
        answer.outputs.extend(to_message(each, pb.TensorInfo) for each in report.tensors(signature.outputs))
        if examined is None:
            return answer
        answer.family, answer.family_reason = examined.recognition.family or "", examined.recognition.reason
        answer.score = examined.recognition.thresholds.score
        if admission.finding is None and examined.recognition.reads_pictures:
            asked = await ask_picture(builder, admission, model, picture)
            answer.width, answer.height, answer.picture = asked.width, asked.height, asked.picture
            answer.detections.extend(pb.TriedDetection(**msgspec.structs.asdict(each)) for each in asked.boxes)
            answer.content.extend(asked.content)
        return answer

    async def remove_model(self, request: pb.RemoveModelRequest, context: Context) -> pb.RemoveModelResponse:
        if self._controller.is_configured(request.name):
            raise InvalidInput(f"model {request.name!r} is in the daemon's configuration; remove it there")
        kept = await despite_cancelling(self._remove(request.name, request.delete))
        return pb.RemoveModelResponse(kept=str(kept or ""))

    async def _remove(self, name: str, delete: bool) -> Path | None:
        """Remove a model; with `delete`, also its gallery and its collected frames. Return the model's folder in the
        trash; with `delete`, return None."""
        kept = await asyncio.to_thread(self._controller.repository.remove, name, delete=delete)
        await self._controller.removed(name)
        if delete:
            try:
                await self._controller.galleries.forget(name)
            finally:
                await self._controller.frames.forget(name)
        return kept

    async def restore_model(self, request: pb.RestoreModelRequest, context: Context) -> pb.ModelStatus:
        if self._controller.is_configured(request.name):
            raise InvalidInput(
                f"model {request.name!r} cannot be restored, because the daemon's configuration has a model of this"
                " name; remove that model from the configuration first"
            )
        await asyncio.to_thread(self._controller.repository.restore, request.name)
        return to_message(await self._read_again(request.name), pb.ModelStatus)

    async def list_engines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:
        if request.model:
            self._controller.find(request.model)
        return pb.ListEnginesResponse(engines=[to_message(each, pb.Engine) for each in self.engines(request.model)])

    async def explain_engine(self, request: pb.ExplainEngineRequest, context: Context) -> pb.ExplainEngineResponse:
        found = report.explain(self._controller.find(request.model), self._controller.store)
        return pb.ExplainEngineResponse(explanations=[to_message(item, pb.Explanation) for item in found])

    def rebuild(self, request: pb.RebuildRequest, context: Context) -> AsyncGenerator[pb.EngineProgress, None]:
        return self._progress(self._commands.rebuild(_selection(request.selector), request.force), request.follow)

    def verify(self, request: pb.VerifyRequest, context: Context) -> AsyncGenerator[pb.EngineProgress, None]:
        return self._progress(self._commands.verify(_selection(request.selector)), request.follow)

    async def cancel(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=self._commands.cancel(_selection(request.selector)))

    async def pin(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.pin(_selection(request.selector)))

    async def unpin(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.unpin(_selection(request.selector)))

    async def evict(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.evict(_selection(request.selector)))

    async def _progress(self, ordered: tuple[Ordered, ...], follow: bool) -> AsyncGenerator[pb.EngineProgress, None]:
        """Yield the progress of every engine once. With `follow`, go on to yield changes until all engines have an
        outcome.

        If a client ends its call, only this generator ends; the work continues.
        """
        unreported = {(each.model, each.key) for each in ordered}
        async with aclosing(self._commands.follow(ordered)) as statuses:
            async for status in statuses:
                yield to_message(status, pb.EngineProgress)
                unreported.discard((status.model, status.key))
                if not unreported and not follow:
                    return

    def status(self) -> StatusInfo:
        """Report the state of the box."""
        return msgspec.structs.replace(report.status(self._controller), page=self.page)

    def models(self) -> list[ModelInfo]:
        """Report all models, ensembles and language models, sorted by name."""
        controller, alarms = self._controller, self._controller.alarms.active()
        found = [self._info(planned) for planned in controller.models.values()]
        found += [report.ensemble(each, alarms, controller.readiness(each)) for each in controller.ensembles.values()]
        found += [report.language(each, alarms) for each in controller.language.models.values()]
        return sorted(found, key=lambda info: info.name)

    def pipelines(self) -> list[PipelineInfo]:
        """Report all pipelines, sorted by name."""
        return self._controller.pipelines.report(self._controller.health)

    def engines(self, model: str = "") -> list[EngineInfo]:
        """Report the engines of a model, or of all models."""
        controller = self._controller
        by_command = controller.settings.build == "command"
        return report.engines(controller.models, controller.store, model, by_command=by_command)

    def cameras(self) -> list[CameraInfo]:
        """Report all cameras, sorted by name."""
        return camera_infos(self._cameras, self._supervisor)

    async def device(self) -> DeviceLoad:
        """Report the load of the box. A thread reads the sensors, which may be slow."""
        readings, box = await asyncio.to_thread(lambda: (self._sensors.read(), system.read_memory(Root())))
        return DeviceLoad(
            cpu_busy=self._controller.load.busy,
            memory_bytes=box.total,
            memory_free_bytes=box.free,
            temperatures=readings.temperatures,
            power_mode=self._controller.fingerprint.facts.get("jetson.power_mode", ""),
            daemon_bytes=resident_bytes(os.getpid()) or 0,
        )

    def _info(self, planned: PlannedModel) -> ModelInfo:
        controller = self._controller
        shapes = report.shape_report(planned, controller.learning.state(planned.entry.name))
        info = report.model(planned, controller.alarms.active(), controller.health, shapes)
        notes = (*info.notes, *gallery_report.notes(controller.galleries, planned))
        frames = frame_report.collection(controller.frames.kept, planned.entry.name)
        drift = controller.drift.report(planned.entry.name)
        return msgspec.structs.replace(info, notes=notes, frames=frames, drift=drift)

    def _camera_statuses(self) -> list[pb.CameraStatus]:
        return [to_message(each, pb.CameraStatus) for each in self.cameras()]

    def _camera(self, name: str) -> pb.CameraStatus:
        return to_message(camera_info(name, self._cameras, self._supervisor), pb.CameraStatus)


def _refused(finding: Finding) -> pb.TryModelResponse:
    return pb.TryModelResponse(
        problem=finding.message, remedy=finding.remedy, stage=finding.stage.value, category=finding.category.value
    )


def _selection(selector: pb.Selector) -> Selection:
    return Selection(model=selector.model, engine=selector.engine, everything=selector.everything)


def event_message(event: Event, epoch: str) -> pb.Event:
    """Return an event as a message. The fields that only this kind of event has are in the nested message with the name
    of the kind."""
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


def model_load(name: str, planned: PlannedModel, alarms: Iterable[Alarm], asking: Health, now: float) -> pb.ModelLoad:
    """Return the load of one model; `now` is in monotonic seconds."""
    status = report.public_readiness(planned, asking)
    slot, statistics = planned.slot, planned.slot.statistics
    message = pb.ModelLoad(
        name=name,
        state=status.state.value,
        reason=status.reason,
        degraded=sorted({alarm.kind.value for alarm in alarms if alarm.model == name}),
        answered=statistics.success.count,
        failed=statistics.fail.count,
        waiting=slot.waiting + planned.fallback.waiting,
    )
    if slot.current is not None:
        engine = slot.current.engine
        message.engine, message.backend = engine.key, engine.backend
        planned_engine = planned.engines.get(engine.key)
        if planned_engine is not None:  # None if the engine belongs to an earlier state of the device
            message.precision, message.device = planned_engine.recipe.precision, planned_engine.recipe.device
            if planned_engine.usual_ms:
                message.baseline_ms = planned_engine.usual_ms
        median = slot.current.latency.median(now)
        if median is not None:
            message.infer_ms = median
    return message


def ensemble_load(name: str, planned: PlannedEnsemble, alarms: Iterable[Alarm], state: Readiness) -> pb.ModelLoad:
    """Return the load of one ensemble."""
    return pb.ModelLoad(
        name=name,
        state=state.state.value,
        reason=state.reason,
        degraded=sorted({alarm.kind.value for alarm in alarms if alarm.model == name}),
        answered=planned.statistics.success.count,
        failed=planned.statistics.fail.count,
    )


def host_loads(links: Iterable[HostLink], counts: EventCounts) -> Iterator[pb.HostLoad]:
    """Yield the load of each running host. Then yield an entry without a process id for each backend that lost its host
    and has no running host."""
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
