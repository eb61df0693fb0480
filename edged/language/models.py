"""The language models of the daemon, by name and version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from edged import tasks
from edged.errors import ModelNotFound
from edged.events import ModelRemoved
from edged.language.model import Box, LanguageState, PlannedLanguageModel
from edged.models.entries import ModelEntry, split_name, versioned_name

_LOG = logging.getLogger("edged.language")


class LanguageModels:
    """The language models to serve. `models` maps entry names to models. An entry name is NAME, or NAME:VERSION for a
    further version."""

    def __init__(self, box: Box) -> None:
        self.models: dict[str, PlannedLanguageModel] = {}
        self._box = box
        self._stopping = tasks.TaskGroup(box.changed)

    def take(self, entries: Mapping[str, ModelEntry]) -> bool:
        """Serve exactly the versions in `entries`; return whether something changed."""
        is_changed = False
        for name in self.models.keys() - entries.keys():
            planned = self.models.pop(name)
            self._stopping.start(planned.stop())
            _LOG.info("model %s: removed", name)
            self._box.events.emit(ModelRemoved(), name)
            is_changed = True
        for name, entry in entries.items():
            planned_now = self.models.get(name)
            if planned_now is None:
                self.models[name] = PlannedLanguageModel(entry, self._box)
                is_changed = True
            elif planned_now.entry != entry:
                planned_now.look(entry)
                is_changed = True
        return is_changed

    def find(self, name: str, version: str = "") -> PlannedLanguageModel | None:
        """Return the model `name`, or its version `version` if one is given. Return None if no language model has this
        name. `name` may also be NAME:VERSION. Raises ModelNotFound if the model has no such version."""
        if not version and name not in self.models:
            name, version = split_name(name)
        planned = self.models.get(name)
        if planned is None or not version or planned.version == version:
            return planned
        further = self.models.get(versioned_name(name, version))
        if further is None:
            known = ", ".join(self.versions(planned.entry.model))
            raise ModelNotFound(f"model {name[:80]!r} has no version {version[:20]}; available: {known}")
        return further

    def require(self, name: str) -> PlannedLanguageModel:
        """Return the model `name`, or the only model if `name` is empty. Raises ModelNotFound without such a model."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        planned = self.find(name) if name else None
        if planned is None:
            known = ", ".join(sorted(self.models)) or "none"
            if not name:
                raise ModelNotFound(
                    "the request names no model; this is allowed only if exactly one language model is served;"
                    f" available: {known}"
                )
            raise ModelNotFound(f"no language model is named {name[:80]!r}; available: {known}")
        return planned

    def versions(self, name: str) -> list[str]:
        """Return the version numbers of a model that the daemon should serve, the lowest first."""
        return sorted((each.version for each in self.models.values() if each.entry.model == name), key=int)

    def device_changed(self) -> None:
        """Examine all models again, because the version of a runtime may have changed."""
        for planned in self.models.values():
            planned.look()

    def troubles(self) -> Iterator[tuple[str, str]]:
        """Yield (model, message) for each model that has a problem."""
        for name, planned in self.models.items():
            if planned.problem is None:
                continue
            is_ready = planned.state is LanguageState.READY
            word = (
                "cannot be served with its newest files and runtime; the previous ones continue to serve"
                if is_ready
                else "cannot be served"
            )
            yield name, f"model {name} {word}: {planned.problem}"

    def fallbacks(self) -> Iterator[tuple[str, str]]:
        """Yield (model, message) for each model that runs on the CPU although its files name another device."""
        for name, planned in self.models.items():
            if planned.host is not None and (why := planned.host.opened.fallback):
                yield name, f"model {name} runs on the CPU instead of the device in genai_config.json: {why}"

    @property
    def are_ready(self) -> bool:
        """Whether every model is ready or refused; false while a model is being loaded."""
        return all(planned.state is not LanguageState.LOADING for planned in self.models.values())

    async def stop(self) -> None:
        """Stop all hosts."""
        models = list(self.models.values())
        self.models.clear()
        await asyncio.gather(*(planned.stop() for planned in models), self._stopping.stop(), return_exceptions=True)
