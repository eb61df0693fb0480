"""The contents of the page: made once a second for all viewers together, and only while a viewer is connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from edged import tasks
from edged.api.grpc.operations import OperationsService
from edged.api.page import view
from edged.backends import registry
from edged.engines.controller import Controller

_SECONDS = 1.0  # seconds between two updates
_LOG_LINES = 300  # newest events that are read; some events have no line
_ENGINES_EVERY = 3  # updates from one list of engines to the next, because this list takes the longest

_encoder = msgspec.json.Encoder()


class Feed:
    """The parts of the page: a mapping from the name of a part to its JSON. Used by one event loop."""

    def __init__(self, controller: Controller, operations: OperationsService) -> None:
        self._controller, self._operations = controller, operations
        self._parts: dict[str, bytes] = {}
        self._viewers = 0
        self._round = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._rows: list[view.ModelRow] = []

    async def follow(self) -> AsyncGenerator[dict[str, bytes], None]:
        """Yield a mapping with all parts of the page. Then yield, once per update, a mapping with the changed parts
        only, which can be empty."""
        self._viewers += 1
        try:
            if not self._parts:
                await self._look(0)
            if self._task is None:
                self._task = tasks.keep("the page", self._run)
            sent: dict[str, bytes] = {}
            while True:
                changed = {name: part for name, part in self._parts.items() if sent.get(name) != part}
                sent |= changed
                yield changed
                async with self._round:
                    await self._round.wait()
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task, self._parts = None, {}

    async def _run(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(_SECONDS)
            count += 1
            await self._look(count)
            async with self._round:
                self._round.notify_all()

    async def _look(self, count: int) -> None:
        controller, operations = self._controller, self._operations
        status, models, cameras = operations.status(), operations.models(), operations.cameras()
        device = await operations.device()
        if count % _ENGINES_EVERY == 0:
            configured = frozenset(model.name for model in models if controller.is_configured(model.name))
            self._rows = view.rows(models, operations.engines(), status.building, registry.TITLES, configured)
            self._rows += map(view.pipeline_row, operations.pipelines())
        lines = [line for each in controller.events.recent(_LOG_LINES) if (line := view.log_line(each)) is not None]
        self._parts = {
            "summary": _encoder.encode(view.summary(status, models, cameras)),
            "cameras": _encoder.encode([view.card(each) for each in cameras]),
            "models": _encoder.encode(self._rows),
            "alarms": _encoder.encode([view.alarm(each) for each in status.alarms]),
            "device": _encoder.encode(view.device(device, controller.fingerprint.facts, status.free_bytes)),
            "log": _encoder.encode(lines),
        }
