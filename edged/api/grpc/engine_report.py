"""The method EngineReport: a report about one engine, with pictures of the frames on which the engine differs most from
the reference.

The pictures show what the box's cameras saw, so only operators may request a report. A child process draws the pictures
during the call, from the frames that the daemon collected. The pictures are not kept.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from edged.api.grpc.rpc import Context
from edged.api.report.page import Report, page
from edged.api_types import EngineInfo
from edged.config.child_limits import Limits
from edged.engines import report
from edged.engines.child import run
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidInput, NotFound, Refused
from edged.ipc import job_messages as jobs
from edged.proto import operations_pb2 as pb
from edged.store.judgement import Judgement
from edged.verification.standard import tolerance_of

_SHORTEST = 6  # least number of characters of a key in a request
_PICTURES = Limits(seconds=60.0, memory_mb=1024, stall_seconds=60.0)
_MOST_BYTES = 3 << 19  # limit of all pictures; base64 adds a third, and gRPC clients accept 4 MiB in a message


class EngineReportHandlers:
    """Answers EngineReport. Draws the pictures of one call at a time."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._drawing = controller, asyncio.Lock()

    async def engine_report(self, request: pb.EngineReportRequest, context: Context) -> pb.EngineReportResponse:
        """Return the report. Raises NotFound, Refused if the engine is not built yet, or InvalidInput if the key in the
        request is too short or ambiguous."""
        engines = self._find(request.engine)
        key = engines[0].key
        record = self._controller.store.records().get(key)
        if record is None:
            raise Refused(
                f"engine {key[:12]} is not built yet, so it has no report; see: edged engines why {engines[0].model}"
            )
        models = tuple(engine.model for engine in engines)
        about = Report(engines[0], models, self._bounds(engines[0]), record.judgement, record.blocks)
        if request.json:
            return pb.EngineReportResponse(key=key, content=msgspec.json.encode(about))
        pictures: dict[str, tuple[bytes, bytes]] = {}
        if record.judgement is not None and record.judgement.worst:
            why = "The pictures were left out, as requested."
            if request.pictures:
                pictures, why = await self._pictures(record.judgement, models)
            about = msgspec.structs.replace(about, no_pictures=why)
        text = await asyncio.to_thread(page, about, pictures)
        return pb.EngineReportResponse(key=key, content=text.encode())

    def _find(self, start: str) -> list[EngineInfo]:
        """Return the engine whose key begins with `start`, once for each model that has the engine."""
        if len(start) < _SHORTEST:
            raise InvalidInput(f"{start!r} is too short for the key of an engine; give at least {_SHORTEST} characters")
        every = report.engines(self._controller.models, self._controller.store, "")
        found = [engine for engine in every if engine.key.startswith(start)]
        keys = sorted({engine.key for engine in found})
        if not keys:
            raise NotFound(f"no engine has a key that begins with {start[:64]!r}; see: edged engines list")
        if len(keys) > 1:
            raise InvalidInput(f"{len(keys)} engine keys begin with {start!r}, such as {keys[0]}; give more characters")
        return found

    def _bounds(self, engine: EngineInfo) -> dict[str, float]:
        """Return the limit of each measured difference from the reference, by name. The limits follow from the current
        settings of the engine's model. Empty for the reference, and if the model is not known."""
        planned = self._controller.models.get(engine.model)
        if planned is None or planned.model is None or engine.is_reference:
            return {}
        bounds: dict[str, float] = msgspec.structs.asdict(tolerance_of(planned.model, engine.precision))
        return bounds

    async def _pictures(
        self, judgement: Judgement, models: tuple[str, ...]
    ) -> tuple[dict[str, tuple[bytes, bytes]], str]:
        """Return a mapping from the name of a frame to two JPEGs: one with the reference's detections, one with the
        engine's (empty if the frame has no detections). Also return why some frames have no pictures; empty if all have
        them."""
        worst, paths = judgement.worst, self._paths(judgement.collection, models)
        frames = [frame for frame in worst if frame.name in paths]
        drawn: dict[str, tuple[bytes, bytes]] = {}
        if frames:
            wanted = tuple(jobs.FrameToDraw(*paths[frame.name], frame.expected, frame.found) for frame in frames)
            try:
                async with self._drawing:
                    found = await run(jobs.DrawFrames(wanted, _MOST_BYTES), jobs.DrawnFrames, _PICTURES)
            except EdgedError as error:
                return {}, f"The pictures could not be drawn: {error}"
            for frame, (expected, other) in zip(frames, found.pictures, strict=False):
                if expected:  # without detections, one picture is enough: the report describes the answers in text
                    drawn[frame.name] = expected, other if frame.expected or frame.found else b""
        missing = len(worst) - len(drawn)
        lost = f"{missing} of {len(worst)} frames have no picture: they are no longer kept, or too large."
        return drawn, lost if missing else ""

    def _paths(self, collection: str, models: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        """Return the path and the digest of each frame of a collection that engines are judged on, by frame name."""
        planned = (self._controller.models.get(name) for name in models)
        known = (each.model.collected for each in planned if each is not None and each.model is not None)
        found = [each for each in known if each is not None and each.id == collection]
        return {Path(path).name: (path, digest) for each in found for path, digest in each.judge.items()}
