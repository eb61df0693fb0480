"""Receives models for the repository, repairs them on request, and examines them in child processes."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from edged.backends import registry
from edged.engines.admission import admit
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.engines.repairer import Repaired, repair
from edged.errors import AlreadyExists, InvalidInput
from edged.files import leads_outside, not_stored
from edged.models import samples as model_samples
from edged.models.entries import check_name
from edged.models.inspection import too_large
from edged.models.repair import RepairOptions
from edged.models.repository import Repository
from edged.proto import operations_pb2 as pb
from edged.tasks import despite_cancelling


@contextlib.asynccontextmanager
async def upload_folder(repository: Repository, what: str) -> AsyncIterator[Path]:
    """Yield a temporary folder for the files of a model. Another thread makes and removes the folder, so that the event
    loop does not wait for the disk.

    The folder is in the repository, since the disk of the repository must have room for the model. The folder is
    removed even if the caller is cancelled. Raises EdgedError, naming `what`, if the disk fails.
    """
    made: list[tempfile.TemporaryDirectory[str]] = []

    def make() -> None:
        repository.root.mkdir(parents=True, exist_ok=True, mode=0o750)
        made.append(tempfile.TemporaryDirectory(prefix=".adding-", dir=repository.root, ignore_cleanup_errors=True))

    try:
        try:
            await despite_cancelling(asyncio.to_thread(make))
        except OSError as error:
            raise not_stored(what, error) from error
        yield Path(made[0].name)
    finally:
        for folder in made:
            await despite_cancelling(asyncio.to_thread(folder.cleanup))


async def add_model_bytes(controller: Controller, name: str, data: memoryview) -> None:
    """Examine a model and add it to the repository. Raises ModelRefused, InvalidInput or AlreadyExists."""
    repository = controller.repository
    try:
        async with upload_folder(repository, "the model") as folder:
            file = folder / "model.onnx"
            await asyncio.to_thread(file.write_bytes, data)
            await admit(controller.builder, file, {}, registry.usable(controller.fingerprint.facts))
            await asyncio.to_thread(repository.add, name, {file.name: file}, {}, move=True)
    except OSError as error:
        raise not_stored("the model", error) from error
    await controller.added(name)


async def repair_upload(
    header: pb.ModelHeader, upload: Upload, settings: Mapping[str, str], installed: Sequence[str]
) -> Repaired | None:
    """Repair the uploaded model in place. Return None if the client requested no repair. Raises ModelRefused."""
    if not header.HasField("repairs"):
        return None
    requested = RepairOptions.parse(header.repairs.needed, header.repairs.steps)
    if not requested.is_any:
        return None
    model, pictures = next(iter(upload.files.values())), tuple(upload.samples.values())
    source = header.repairs.source or model.name
    return await repair(model, requested, settings, installed, source=source, samples=pictures)


async def receive_upload(
    parts: AsyncIterator[pb.AddModelRequest],
    folder: Path,
    taken: Mapping[str, PlannedModel],
    pipelines: Collection[str] = (),
) -> tuple[pb.ModelHeader, Upload]:
    """Write an upload into `folder`; the upload's first file is the model. Raises AlreadyExists if a pipeline has the
    model's name, or if `taken` has that name and the header does not ask to replace the model. Raises InvalidInput if
    the parts are out of order, and another EdgedError if the disk fails."""
    header = pb.ModelHeader()
    try:
        async with contextlib.aclosing(Upload(folder)) as upload:
            async for part in parts:
                kind = part.WhichOneof("part")
                if kind == "header":
                    header = part.header
                    check_name(header.name)
                    if header.name in taken and not header.replace:
                        raise AlreadyExists(taken[header.name].entry.already_there(header.digest))
                    if header.name in pipelines and header.name not in taken:
                        raise AlreadyExists(f"{header.name!r} is the name of a pipeline; give the model another name")
                elif kind == "file":
                    await upload.begin(part.file)
                elif kind == "chunk":
                    await upload.write(part.chunk)
            await upload.finish()
    except OSError as error:
        raise not_stored("the upload", error) from error
    if not header.name or not upload.files:
        raise InvalidInput(
            "the upload has no header or no file; send a header with the model's name, then the model's file"
        )
    return header, upload


class Upload:
    """Writes the files of an upload one after the other, and checks that each file has the announced size. A thread
    waits for the disk.

    `files` are the model and its external data, `samples` are pictures; both are mappings from names to paths.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self.samples: dict[str, Path] = {}
        self._folder = folder
        self._file: BinaryIO | None = None
        self._missing = 0

    async def begin(self, announced: pb.ModelFile) -> None:
        await self.finish()
        name = _relative(announced.path)
        if announced.sample:
            self._admit_sample(name, announced.size)
        elif not self.files and (finding := too_large(name, announced.size)) is not None:
            raise finding.refusal()
        # Separate folders: external data may have any name.
        kind, files = ("samples", self.samples) if announced.sample else ("model", self.files)
        if name in files:
            raise InvalidInput(f"the upload has two files with the name {name!r}; send each file once")
        place = files[name] = self._folder / kind / name
        await asyncio.to_thread(self._open, place)
        self._missing = announced.size

    def _open(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = place.open("xb")

    def _admit_sample(self, name: str, size: int) -> None:
        if not self.files:
            raise InvalidInput("the upload begins with a sample; send the model first, and samples after the model")
        model_samples.check_name(name)
        model_samples.check_size(name, size)
        if len(self.samples) == model_samples.MOST:
            raise InvalidInput(f"the upload has too many samples; choose at most {model_samples.MOST}")

    async def write(self, chunk: bytes) -> None:
        if self._file is None:
            raise InvalidInput(
                "the upload has a chunk before its first file; send a header, then each file followed by its chunks"
            )
        if len(chunk) > self._missing:
            raise InvalidInput("a file of the upload is longer than announced; send the upload again")
        await asyncio.to_thread(self._file.write, chunk)
        self._missing -= len(chunk)

    async def finish(self) -> None:
        """Raise InvalidInput unless all announced bytes arrived. The stream of a client that disconnects ends like the
        stream of a complete upload."""
        await self.aclose()
        if self._missing:
            raise InvalidInput(
                f"a file of the upload is {self._missing} bytes shorter than announced; send the upload again"
            )

    async def aclose(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(self._file.close)


def _relative(path: str) -> str:
    """Return a path inside the model's folder. Raises InvalidInput if the path leads outside."""
    if leads_outside(path):
        raise InvalidInput(f"invalid file name {path[:80]!r}: it must be a relative path without '..'")
    return str(PurePosixPath(path))
