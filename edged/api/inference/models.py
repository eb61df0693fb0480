"""Which model a request is about."""

from __future__ import annotations

import asyncio

from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, NotReady
from edged.models.model import Model


def find(controller: Controller, name: str, version: str = "") -> PlannedModel:
    """The plan of a model, or of one version of it. InvalidInput, NotFound, or NotReady for a version to come."""
    if not name:
        raise InvalidInput("the request names no model; set its name")
    return controller.find(name, version)


async def loaded(planned: PlannedModel) -> Model:
    """The model that answers, waiting while it is being read for the first time; NotReady where it cannot be served."""
    while planned.answering is None and planned.reading is not None and not planned.reading.done():
        await asyncio.wait([planned.reading])
    answering = planned.answering
    if answering is None:
        reason = planned.problem or "it was removed"
        raise NotReady(f"model {planned.entry.name!r} cannot be served: {reason}")
    return answering
