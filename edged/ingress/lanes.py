"""The lanes beside gRPC, for programs on the same machine: Frigate's, frames over ZeroMQ, and what is published."""

from __future__ import annotations

import asyncio

from edged.config import Config
from edged.control.controller import Controller
from edged.ingress.frigate import FrigateEndpoint
from edged.ingress.publisher import Publisher
from edged.ingress.zmq_frames import FrameLane
from edged.serving.camera import Cameras


class Lanes:
    """Those that are configured. `publisher` is for every lane that has results to tell."""

    def __init__(self, controller: Controller, cameras: Cameras, config: Config) -> None:
        self.publisher = Publisher(controller.events)
        self._publish = config.zmq.publish
        self._frigate = FrigateEndpoint(controller, config.frigate, self.publisher) if config.frigate else None
        self._frames = FrameLane(controller, cameras, config.zmq.frames, self.publisher) if config.zmq.frames else None
        self.addresses: list[str] = []

    def start(self) -> None:
        """Listens. ConfigError where that is impossible; `stop` then closes what listens already."""
        if self._publish:
            self.addresses.append(self.publisher.start(self._publish))
        if self._frames is not None:
            self.addresses.append(self._frames.start())
        if self._frigate is not None:
            self.addresses.append(self._frigate.start())

    async def stop(self, grace: float) -> None:
        """Takes nothing more, and answers what came if that is within `grace` seconds. The publisher goes on: others
        may have results yet."""
        lanes = []
        if self._frigate is not None:
            lanes.append(self._frigate.stop())
        if self._frames is not None:
            lanes.append(self._frames.stop(grace))
        await asyncio.gather(*lanes)
