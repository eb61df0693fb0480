"""The methods of edged.v1.Operations for frames collected from live cameras. Responses contain no pictures."""

from __future__ import annotations

from edged.api.grpc.cameras import require_pictures
from edged.api.grpc.rpc import Context
from edged.config.tables import LONGEST_HOURS, MOST_CAMERAS, MOST_FRAMES, Collect
from edged.engines import frame_report
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidInput
from edged.message_mapper import to_message
from edged.proto import operations_pb2 as pb
from edged.serving.pipeline_slot import PipelineSlot
from edged.serving.stream_camera import check_camera

_USUAL = Collect()


class FrameHandlers:
    """Starts, stops, lists and removes collections."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._frames = controller, controller.frames

    async def collect_frames(self, request: pb.CollectFramesRequest, context: Context) -> pb.FrameCollection:
        slot = self._controller.slot(request.model)
        if isinstance(slot, PipelineSlot):
            raise InvalidInput(
                f"no frames are collected for pipeline {request.model!r}; give its first model, {slot.rule.detect!r}"
            )
        require_pictures(self._controller, slot)
        frames, over_s = request.frames or _USUAL.frames, request.over_s or _USUAL.over_hours * 3600
        if not 1 <= frames <= MOST_FRAMES:
            raise InvalidInput(f"'frames' is {frames}; give 1 to {MOST_FRAMES}")
        if not 1.0 <= over_s <= LONGEST_HOURS * 3600:  # false for NaN
            raise InvalidInput(f"'over_s' is {over_s:g}; give 1 second to {LONGEST_HOURS / 24:g} days")
        if len(request.cameras) > MOST_CAMERAS:
            raise InvalidInput(
                f"the request names {len(request.cameras)} cameras; name at most {MOST_CAMERAS}, or none for all"
            )
        for camera in request.cameras:
            check_camera(camera)
        await self._frames.start(slot.model, request.cameras, frames, over_s)
        return self._report(slot.model)

    async def stop_collecting(self, request: pb.StopCollectingRequest, context: Context) -> pb.FrameCollection:
        model = self._kept_as(request.model)
        self._frames.stop(model)
        return self._report(model)

    async def list_frames(self, request: pb.ListFramesRequest, context: Context) -> pb.ListFramesResponse:
        if request.model:
            one = frame_report.collection(self._frames.kept, self._kept_as(request.model), each=request.each)
            found = [one] if one is not None else []
        else:
            found = frame_report.collections(self._frames.kept, each=request.each)
        return pb.ListFramesResponse(collections=[to_message(each, pb.FrameCollection) for each in found])

    async def remove_frames(self, request: pb.RemoveFramesRequest, context: Context) -> pb.RemoveFramesResponse:
        await self._frames.remove(self._kept_as(request.model))
        return pb.RemoveFramesResponse()

    def _kept_as(self, model: str) -> str:
        """Return the name under which the frames of a model are kept. For the default version this is NAME, even if
        `model` is NAME:VERSION. If the model was removed, return `model`: its frames may still be kept. Raises
        InvalidInput if no model is named."""
        if not model:
            raise InvalidInput("the request names no model; see: edged samples list")
        try:
            return self._controller.slot(model).model
        except EdgedError:
            return model

    def _report(self, model: str) -> pb.FrameCollection:
        found = frame_report.collection(self._frames.kept, model)
        return pb.FrameCollection(model=model) if found is None else to_message(found, pb.FrameCollection)
