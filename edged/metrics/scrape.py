"""One scrape: what is known is gathered on the event loop, the rest read and everything written out in a thread."""

from __future__ import annotations

import asyncio
import gzip
import time

from prometheus_client.exposition import choose_encoder

from edged.api.auth.guard import Guard
from edged.engines.controller import Controller
from edged.engines.readiness import all_ready, readiness
from edged.metrics import access, alarms, box, builds, cameras, engines, hosts, models, names, process
from edged.metrics.sheet import Sheet
from edged.metrics.tally import Tally
from edged.serving.camera import Cameras
from edged.version import __version__

_POWER_MODE = "jetson.power_mode"


class Scraper:
    """Reads the daemon; one scrape at a time, and whoever comes meanwhile gets the next."""

    def __init__(
        self, controller: Controller, known: Cameras, tally: Tally, guard: Guard, sensors: box.Sensors | None = None
    ) -> None:
        self._controller, self._cameras, self._tally, self._guard = controller, known, tally, guard
        self._sensors = sensors or box.Sensors()
        self._turn = asyncio.Lock()

    async def scrape(self, accept: str, compressed: bool = False) -> tuple[bytes, str]:
        """The text, and its content type as the `Accept` of the asker has it."""
        async with self._turn:
            readings = await asyncio.to_thread(self._sensors.read)
            sheet = self._gathered()
            controller = self._controller
            box.collect(sheet, controller.load.busy, controller.fingerprint.facts.get(_POWER_MODE, ""), readings)
            encode, kind = choose_encoder(accept)

            def write() -> bytes:
                process.collect(sheet)
                hosts.collect(sheet, links, self._tally)
                text: bytes = encode(sheet)
                return gzip.compress(text, 5) if compressed else text

            links = controller.links()
            return await asyncio.to_thread(write), kind

    def _gathered(self) -> Sheet:
        """What only the event loop may look at."""
        sheet, controller = Sheet(), self._controller
        sheet.put(names.INFO, 1, __version__)
        sheet.put(names.UPTIME, time.monotonic() - controller.started)
        sheet.put(names.READY, all_ready(controller.models.values(), controller.health))
        raised = controller.alarms.active()
        for name, planned in controller.models.items():
            models.collect(sheet, name, planned, readiness(planned, controller.health), raised)
            engines.collect(sheet, name, planned)
        cameras.collect(sheet, self._cameras)
        builds.collect(sheet, controller, self._tally)
        access.collect(sheet, self._guard)
        sheet.put(names.TASKS, len(asyncio.all_tasks()))
        alarms.collect(sheet, raised, self._tally)
        return sheet
