"""The same plans as a daemon has, made without one: what the models and the store on disk amount to on this box."""

from __future__ import annotations

from pathlib import Path

from edged.engines.builder import Builder
from edged.engines.plan import PlannedModel
from edged.engines.planner import Planner
from edged.errors import EdgedError
from edged.models.model import Model
from edged.models.repository import Repository
from edged.serving.slot import Slot
from edged.store.store import Store


async def plans(repository: Repository, store: Store, builder: Builder, planner: Planner) -> dict[str, PlannedModel]:
    """Every model of the repository with the engines it should have here. Nothing is built or opened."""
    planned: dict[str, PlannedModel] = {}
    for name, entry in repository.entries().items():
        planned[name] = PlannedModel(entry, Slot(name))
        try:
            inspection = await builder.inspect(Path(entry.path))
            planner.plan(planned[name], Model.of(entry, inspection))
        except EdgedError as error:
            planned[name].problem = error
    return planned
