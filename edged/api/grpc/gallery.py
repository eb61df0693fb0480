"""The methods of edged.v1.Operations for galleries: pictures become embeddings with names."""

from __future__ import annotations

import math
import time

from edged.api.grpc.cameras import require_pictures
from edged.api.grpc.rpc import Context
from edged.engines import gallery_report
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidInput, Refused
from edged.message_mapper import to_message
from edged.proto import operations_pb2 as pb
from edged.serving.pipeline_slot import PipelineSlot
from edged.serving.slot import Slot
from edged.serving.work import Answered, FrameWork
from edged.vision.content import Embedding
from edged.vision.gallery import check_name, space_of
from edged.vision.placement import Region, Roi

_MOST_PICTURES = 32  # in one call


class GalleryHandlers:
    """Adds, lists and removes the names in galleries. The model's engine runs on the pictures as on any frame. Pictures
    are not kept."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._galleries = controller, controller.galleries

    async def add_to_gallery(self, request: pb.AddToGalleryRequest, context: Context) -> pb.Gallery:
        """Add all pictures to a gallery; if one picture fails, add none."""
        name = check_name(request.name)
        if not 1 <= len(request.pictures) <= _MOST_PICTURES:
            raise InvalidInput(f"the call has {len(request.pictures)} pictures; send 1 to {_MOST_PICTURES}")
        slot = self._controller.slot(request.model)
        if isinstance(slot, PipelineSlot):
            raise InvalidInput(f"pipeline {request.model!r} has no gallery; give its second model, {slot.rule.then!r}")
        require_pictures(self._controller, slot)
        seconds = context.time_remaining()
        expires = math.inf if seconds is None else time.monotonic() + seconds
        spaces, embeddings = set[str](), list[Embedding]()
        for number, picture in enumerate(request.pictures, 1):
            try:
                answer, embedding = await _embed(slot, picture, expires)
            except InvalidInput as error:
                raise type(error)(f"picture {number}: {error}; nothing was added") from None
            spaces.add(space_of(answer.engine.model, answer.engine.recognition))
            embeddings.append(embedding)
        if len(spaces) > 1:
            raise Refused(
                f"model {slot.model!r} was replaced during the call; nothing was added; add the pictures again"
            )
        await self._galleries.add(slot.model, spaces.pop(), name, embeddings)
        return self._report(slot.model)

    async def list_galleries(self, request: pb.ListGalleriesRequest, context: Context) -> pb.ListGalleriesResponse:
        found = gallery_report.galleries(self._galleries, self._controller.models)
        return pb.ListGalleriesResponse(galleries=[to_message(each, pb.Gallery) for each in found])

    async def remove_from_gallery(self, request: pb.RemoveFromGalleryRequest, context: Context) -> pb.Gallery:
        if bool(request.name) == request.everything:
            raise InvalidInput("give either 'name', or 'everything' to remove the whole gallery")
        model = self._kept_as(request.model)
        await self._galleries.remove(model, request.name)
        return self._report(model)

    def _kept_as(self, model: str) -> str:
        """Return the name under which the gallery of a model is kept. For the default version this is NAME, even if
        `model` is NAME:VERSION. If the model was removed, return `model`: its gallery may still be kept."""
        try:
            return self._controller.slot(model).model
        except EdgedError:
            return model

    def _report(self, model: str) -> pb.Gallery:
        found = self._galleries.all().get(model)
        if found is None:
            return pb.Gallery(model=model)
        return to_message(gallery_report.gallery(model, found, self._controller.models.get(model)), pb.Gallery)


async def _embed(slot: Slot, picture: pb.GalleryPicture, expires: float) -> tuple[Answered, Embedding]:
    """Return a model's answer to a picture, and the embedding in it. Raises InvalidInput if the answer is not an
    embedding."""
    whole = not (picture.x or picture.y or picture.width or picture.height)
    roi = None if whole else Roi(Region(picture.x, picture.y, picture.width, picture.height))
    work = FrameWork(picture.encoded, roi=roi, expires=expires, must_answer=True)
    await slot.push_when_room(work)
    try:
        answer = await work.future
    except BaseException:
        work.future.cancel()
        raise
    found = answer.content
    if not isinstance(found, Embedding):
        family = answer.engine.recognition.family or "none"
        raise InvalidInput(f"model {slot.model!r} (family {family}) returns no embeddings; see docs/gallery.md")
    if not found.vector().any():
        raise InvalidInput("the model's embedding of the picture has only zeros; give another picture")
    return answer, found
