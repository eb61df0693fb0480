"""The ways in and out beside gRPC: HTTP, Frigate's, frames over ZeroMQ, what is published, and metrics.

Each listens with settings of its own, and listens anew when these change.
"""

from __future__ import annotations

import asyncio

from edged.api.grpc.server import Ingress
from edged.api.http.listener import HttpListener
from edged.api.lanes.frigate import FrigateEndpoint
from edged.api.lanes.lane import Lane, Opened
from edged.api.lanes.publisher import Publisher
from edged.api.lanes.zmq_frames import FrameLane
from edged.config import Config, Frigate, Http, Metrics
from edged.engines.controller import Controller
from edged.metrics.endpoint import Endpoint
from edged.serving.camera import Cameras


class Lanes:
    """Those that are configured. `publisher` is what every lane that has results tells them to."""

    def __init__(
        self, controller: Controller, cameras: Cameras, config: Config, publisher: Publisher, ingress: Ingress
    ) -> None:
        self._controller, self._cameras, self._publisher, self._ingress = controller, cameras, publisher, ingress
        self.publish = Lane(config.zmq.publish, self._open_publish)
        self.frames = Lane(config.zmq.frames, self._open_frames)
        self.frigate = Lane(config.frigate, self._open_frigate)
        self.http = Lane(config.http, self._open_http)
        self.metrics = Lane(config.metrics, self._open_metrics)

    @property
    def addresses(self) -> list[str]:
        """Where they listen."""
        lanes = (self.publish, self.frames, self.frigate, self.http, self.metrics)
        return [address for lane in lanes for address in lane.addresses]

    async def start(self) -> None:
        """Listens. ConfigError where that is impossible; `stop` then closes what listens already."""
        await self.publish.start()
        await self.frames.start()
        await self.frigate.start()
        await self.http.start()
        await self.metrics.start()

    async def stop(self, grace: float) -> None:
        """Takes nothing more, and answers what came if that is within `grace` seconds. The publisher goes on: others
        may have results yet."""
        lanes = (self.frames, self.frigate, self.http, self.metrics)
        await asyncio.gather(*(lane.stop(grace) for lane in lanes))

    async def _open_publish(self, address: str) -> Opened | None:
        if not address:
            return None

        async def close(grace: float) -> None:
            await self._publisher.stop()

        return Opened((self._publisher.start(address),), close)

    async def _open_frames(self, address: str) -> Opened | None:
        if not address:
            return None
        lane = FrameLane(self._controller, self._cameras, address, self._publisher)
        return Opened((lane.start(),), lane.stop)

    async def _open_frigate(self, settings: Frigate | None) -> Opened | None:
        if settings is None:
            return None
        endpoint = FrigateEndpoint(self._controller, settings, self._publisher)

        async def close(grace: float) -> None:
            await endpoint.stop()

        return Opened((endpoint.start(),), close)

    async def _open_http(self, http: Http) -> Opened | None:
        if not http.listen:
            return None
        listener = HttpListener(http, self._ingress.calls, self._ingress.cameras, self._ingress.guard)
        try:
            await listener.start()
        except BaseException:
            await listener.stop(0.0)
            raise
        return Opened(tuple(listener.addresses), listener.stop)

    async def _open_metrics(self, metrics: Metrics) -> Opened | None:
        if not metrics.listen:
            return None
        from edged.metrics.scrape import Scraper  # brings Prometheus' client library

        scraper = Scraper(self._controller, self._cameras, self._ingress.tally, self._ingress.guard)
        endpoint = Endpoint(metrics.listen, scraper.scrape)
        return Opened((await endpoint.start(),), endpoint.stop)
