"""edged.v1.Operations: what operators ask and command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, TypeAlias

import msgspec

from edged.api.grpc.adding import adding
from edged.api.grpc.engines import EngineHandlers
from edged.api.grpc.load import LoadReader
from edged.api.grpc.rpc import Context, Service
from edged.api_types import ModelInfo
from edged.backends import registry
from edged.config.changes import Outcome
from edged.engines import report
from edged.engines.admission.examination import admit
from edged.engines.alarms import Alarm
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.engines.repairer import Repaired, repair
from edged.engines.shape_book import shape_report
from edged.errors import AlreadyExists, InvalidInput, Refused
from edged.events import Event, ModelRepaired
from edged.files import not_stored
from edged.message_mapper import to_message
from edged.metrics.tally import Tally
from edged.models import samples as model_samples
from edged.models.entries import check_name
from edged.models.inspection import too_large
from edged.models.repair import Wish, short
from edged.proto import operations_pb2 as pb
from edged.serving.camera import Cameras

Reload: TypeAlias = Callable[[], Awaitable[Sequence[Outcome]]]

_READ_SECONDS = 10.0  # until the answer to an upload tells what was read, at most


class OperationsService:
    """Reads the controller's plans; changes go through the repository, which the controller then sees."""

    def __init__(self, controller: Controller, cameras: Cameras, tally: Tally) -> None:
        self._controller, self._cameras = controller, cameras
        self._load = LoadReader(controller, cameras, tally)
        self.reloads: Reload | None = None  # by which the configuration is read again, where it can be

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
            raise Refused("this daemon has no configuration that could be read again; start it with --config")
        outcomes = await self.reloads()
        return pb.ReloadResponse(keys=[pb.ReloadedKey(key=o.key, told=o.told, problem=o.problem) for o in outcomes])

    async def watch_events(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[pb.Event]:
        log = self._controller.events
        async with aclosing(log.follow(request.after, request.epoch, request.follow)) as events:
            async for event in events:
                yield event_message(event, log.epoch)

    async def add_model(self, parts: AsyncIterator[pb.AddModelRequest], context: Context) -> pb.ModelStatus:
        """Takes the files in, examines the model, and only then lets it into the repository."""
        repository = self._controller.repository
        async with adding(repository, "the upload") as folder:
            try:
                header, upload = await _receive(parts, folder, self._controller.models)
            except OSError as error:
                raise not_stored("the upload", error) from error
            settings, samples = dict(header.settings), upload.samples
            pictures, installed = tuple(samples.values()), registry.installed(self._facts())
            repaired = await _repaired(header, upload, settings, installed)
            record = repaired.record if repaired is not None and repaired.record.is_worth_keeping else None
            files = upload.files if repaired is None else repaired.files
            model = next(iter(files.values()))
            await admit(self._controller.builder, model, settings, installed, pictures)
            await asyncio.to_thread(
                repository.add, header.name, files, settings, samples=samples, move=True, record=record
            )
        if record is not None and record.steps:
            self._controller.events.tell(ModelRepaired(record.digest, record.original, short(record)), header.name)
        planned = await self._controller.added(header.name)
        if planned.reading is not None:
            await asyncio.wait([planned.reading], timeout=_READ_SECONDS)
        info = self._info(planned, self._controller.alarms.active())
        if record is not None:  # also if reading it takes longer
            info = msgspec.structs.replace(info, repair=record)
        return to_message(info, pb.ModelStatus)

    async def remove_model(self, request: pb.RemoveModelRequest, context: Context) -> pb.RemoveModelResponse:
        if self._controller.is_configured(request.name):
            raise InvalidInput(f"model {request.name!r} is named by the daemon's configuration; remove it there")
        kept = await asyncio.to_thread(self._controller.repository.remove, request.name, delete=request.delete)
        await self._controller.removed(request.name)
        return pb.RemoveModelResponse(kept=str(kept or ""))

    def _info(self, planned: PlannedModel, alarms: tuple[Alarm, ...]) -> ModelInfo:
        shapes = shape_report(planned, self._controller.learning.state(planned.entry.name))
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


async def _repaired(
    header: pb.ModelHeader, upload: _Upload, settings: Mapping[str, str], installed: Sequence[str]
) -> Repaired | None:
    """The upload, repaired where it lies; None where that is not wished for."""
    if not header.HasField("repairs"):
        return None
    wish = Wish.parse(header.repairs.needed, header.repairs.steps)
    if not wish.is_any:
        return None
    model, pictures = next(iter(upload.files.values())), tuple(upload.samples.values())
    source = header.repairs.source or model.name
    return await repair(model, wish, settings, installed, source=source, samples=pictures)


async def _receive(
    parts: AsyncIterator[pb.AddModelRequest], folder: Path, taken: Mapping[str, PlannedModel]
) -> tuple[pb.ModelHeader, _Upload]:
    """Writes an upload into `folder`; the first file is the model. InvalidInput when the parts make no sense."""
    header, upload = pb.ModelHeader(), _Upload(folder)
    async with upload:
        async for part in parts:
            kind = part.WhichOneof("part")
            if kind == "header":
                header = part.header
                check_name(header.name)
                if header.name in taken:
                    raise AlreadyExists(taken[header.name].entry.already_there(header.digest))
            elif kind == "file":
                await upload.begin(part.file)
            elif kind == "chunk":
                await upload.write(part.chunk)
    if not header.name or not upload.files:
        raise InvalidInput("the upload has no header or no file; send the model's name and its bytes")
    return header, upload


class _Upload:
    """The files of an upload as they arrive, one after the other, each of the size that was announced. Another thread
    waits for the disk.

    `files` are the model and its external data, `samples` pictures; both by name.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self.samples: dict[str, Path] = {}
        self._folder = folder
        self._file: BinaryIO | None = None
        self._missing = 0

    async def begin(self, announced: pb.ModelFile) -> None:
        await self._finish()
        name = _relative(announced.path)
        if announced.sample:
            self._admit_sample(name, announced.size)
        elif not self.files and (finding := too_large(name, announced.size)) is not None:
            raise finding.refusal()
        # Folders of their own: external data may be called as it likes.
        kind, files = ("samples", self.samples) if announced.sample else ("model", self.files)
        if name in files:
            raise InvalidInput(f"the upload names {name!r} twice")
        place = files[name] = self._folder / kind / name
        await asyncio.to_thread(self._open, place)
        self._missing = announced.size

    def _open(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = place.open("xb")

    def _admit_sample(self, name: str, size: int) -> None:
        if not self.files:
            raise InvalidInput("the first file of an upload is the model; samples come after it")
        model_samples.check_name(name)
        model_samples.check_size(name, size)
        if len(self.samples) == model_samples.MOST:
            raise InvalidInput(f"the upload has too many samples; choose at most {model_samples.MOST}")

    async def write(self, chunk: bytes) -> None:
        if self._file is None:
            raise InvalidInput("an upload is a header, then files, each followed by its chunks")
        if len(chunk) > self._missing:
            raise InvalidInput("the upload is longer than was announced; send it again")
        await asyncio.to_thread(self._file.write, chunk)
        self._missing -= len(chunk)

    async def _finish(self) -> None:
        """A client that goes away ends its stream as one that is done does; only the size tells them apart."""
        await self._close()
        if self._missing:
            raise InvalidInput(f"the upload is {self._missing} bytes short of what was announced; send it again")

    async def _close(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(self._file.close)

    async def __aenter__(self) -> _Upload:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()
        if error is None:
            await self._finish()


def _relative(path: str) -> str:
    """A path inside the model's folder, or InvalidInput."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path or str(pure) == ".":
        raise InvalidInput(f"{path[:80]!r} is not a file name inside a model's folder")
    return str(pure)
