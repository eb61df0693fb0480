"""Models loaded by command, of a catalogue whose reader a test decides for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edged.build.admission import Admission
from edged.control import loader as loading
from edged.control.loader import Loader
from edged.control.shelf import Shelf
from edged.errors import InvalidInput, OutOfMemory
from tests.unit.control_room import entry, inspection, serve, settle
from tests.unit.test_catalogue import House
from tests.waiting import run, until


class Repository:
    """A folder with one model."""

    root = Path("/nowhere")

    def __init__(self) -> None:
        self.models = {"m": entry("m")}

    def entries(self) -> Any:
        return dict(self.models)


class Overrides:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def entries(self, name: str, config: str | None, files: object) -> Any:
        return {name: self._repository.models[name]}

    def discard(self, entries: object) -> None:
        pass


def test_what_could_not_be_served_is_tried_again_by_command_though_the_disk_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(*_: object) -> Admission:
        return Admission(inspection("m"), None, {})

    monkeypatch.setattr(loading, "admit", admit)

    async def story() -> None:
        repository = Repository()
        house = House(tmp_path)
        house.shelf = Shelf(repository, "explicit", ["m"])  # type: ignore[assignment, arg-type]
        house.catalogue._shelf = house.shelf
        house.readers.files["m"] = OutOfMemory("the box was full")
        await house.look()
        planned = house.catalogue.models["m"]
        assert planned.problem is not None
        made = Overrides(repository)
        nothing: Any = None
        loader = Loader(house.shelf, house.catalogue, made, nothing, lambda: (), lambda: None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await loader.load("../m")

        del house.readers.files["m"]
        task = asyncio.ensure_future(loader.load("m"))
        await until(lambda: planned.problem is None or task.done(), "the model is read again")
        await settle()
        assert not task.done(), task
        serve(planned, next(iter(planned.engines)))
        await task
        assert [row.state for row in loader.listed()] == ["READY"]

    run(story())
