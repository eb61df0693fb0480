"""Which of the models on disk there are to be, by the mode of control.

poll       all of them, as the disk has them at the moment
none       all of them, as the disk had them at the start
explicit   those that were loaded by command, as the disk had them then; at the start those that the configuration names
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from edged.config import ModelControl
from edged.models.repository import ModelEntry, Repository, split_name

EVERY = "*"
_LOG = logging.getLogger("edged.engines")


class Shelf:
    """The entries that the catalogue plans. In mode `poll` nothing is held: `hold` and `drop` do nothing."""

    def __init__(self, repository: Repository, mode: ModelControl = "poll", startup: Iterable[str] = ()) -> None:
        """`startup` are the models that mode `explicit` begins with, `EVERY` for all."""
        self.mode = mode
        self._repository, self._startup = repository, frozenset(startup)
        self._held: dict[str, dict[str, ModelEntry]] | None = None  # never changed: a thread may be reading it
        self._changing = threading.Lock()

    def entries(self) -> dict[str, ModelEntry]:
        """Every version that there is to be, by name."""
        if self.mode == "poll":
            return self._repository.entries()
        return {name: entry for entries in self._models().values() for name, entry in entries.items()}

    def on_disk(self) -> dict[str, dict[str, ModelEntry]]:
        """What the repository has now, by model and then by the name of the version."""
        return _by_model(self._repository.entries())

    def held(self, model: str) -> dict[str, ModelEntry]:
        """The versions of a model that are held; none if it was not loaded. Reads the disk the first time."""
        return dict(self._models().get(model, {}))

    def hold(self, model: str, entries: Mapping[str, ModelEntry]) -> None:
        """From now on these are what there is to be of a model."""
        with self._changing:
            self._held = {**self._models(), model: dict(entries)}

    def take(self, model: str) -> None:
        """What the disk has of a model now is what there is to be of it."""
        if self.mode == "poll":
            return
        entries = self.on_disk().get(model)
        if entries:
            self.hold(model, entries)
        else:
            self.drop(model)

    def drop(self, model: str) -> None:
        """There is to be nothing of a model."""
        with self._changing:
            self._held = {name: entries for name, entries in self._models().items() if name != model}

    def _models(self) -> dict[str, dict[str, ModelEntry]]:
        if self._held is None:
            there = self.on_disk() if self.mode != "poll" else {}
            if self.mode == "explicit" and EVERY not in self._startup:
                for name in sorted(self._startup - there.keys()):
                    _LOG.error("startup model %s is not in %s; it is not served", name, self._repository.root)
                there = {name: entries for name, entries in there.items() if name in self._startup}
            self._held = there
        return self._held


def _by_model(entries: Mapping[str, ModelEntry]) -> dict[str, dict[str, ModelEntry]]:
    models: dict[str, dict[str, ModelEntry]] = {}
    for name, entry in entries.items():
        models.setdefault(split_name(name)[0], {})[name] = entry
    return models
