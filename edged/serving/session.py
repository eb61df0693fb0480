"""An engine opened in a host, as the slot that it serves sees it."""

from __future__ import annotations

import asyncio

from edged.serving.link import HostLink
from edged.serving.pace import Pace
from edged.serving.vitals import Vitals
from edged.serving.work import EngineRef


class ServingSession:
    """What its slot has to know of it from one piece of work to the next."""

    def __init__(self, link: HostLink, number: int, engine: EngineRef, apart: str = "") -> None:
        """`apart`: the host for suspects that it was opened in; empty for the one that all share."""
        self.link, self.number, self.engine, self.apart = link, number, engine, apart
        self.in_flight = 0
        self.is_on_trial = False  # what is in flight may be what killed a host before
        self.batching, self.rows = engine.batching, engine.rows
        self.pace = Pace()
        self.vitals = Vitals()
        self.reply_bytes = 0  # the largest answer so far, so that the next finds room in the arena
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def edition(self) -> str:
        """Which build of its key it is."""
        return self.engine.edition

    async def retire(self) -> None:
        """Finishes what it has, then closes the engine."""
        await self.idle.wait()
        await self.link.close_session(self.number)
