"""The ways in and out beside gRPC: HTTP, Frigate's, frames over ZeroMQ, what is published, and metrics.

Each listens with settings of its own, and listens anew when these change.
"""

from __future__ import annotations

import asyncio

from edged.api.endpoints.frigate import FrigateEndpoint
from edged.api.endpoints.lane import Endpoint, Opened
from edged.api.endpoints.publisher import Publisher
from edged.api.endpoints.zmq_frames import FrameEndpoint
from edged.api.grpc.server import Ingress
from edged.api.http.listener import HttpListener
from edged.config import Config, Frigate, Http, Metrics
from edged.engines.controller import Controller
from edged.metrics.endpoint import Endpoint as MetricsEndpoint
from edged.serving.camera import Cameras


class Endpoints:
    """Those that are configured. `publisher` is what every endpoint that has results tells them to."""

    def __init__(
        self, controller: Controller, cameras: Cameras, config: Config, publisher: Publisher, ingress: Ingress
    ) -> None:
        self._controller, self._cameras, self._publisher, self._ingress = controller, cameras, publisher, ingress
        self.publish = Endpoint(config.zmq.publish, self._open_publish)
        self.frames = Endpoint(config.zmq.frames, self._open_frames)
        self.frigate = Endpoint(config.frigate, self._open_frigate)
        self.http = Endpoint(config.http, self._open_http)
        self.metrics = Endpoint(config.metrics, self._open_metrics)

    @property
    def addresses(self) -> list[str]:
        """Where they listen."""
        endpoints = (self.publish, self.frames, self.frigate, self.http, self.metrics)
        return [address for endpoint in endpoints for address in endpoint.addresses]

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
        endpoints = (self.frames, self.frigate, self.http, self.metrics)
        await asyncio.gather(*(endpoint.stop(grace) for endpoint in endpoints))

    async def _open_publish(self, address: str) -> Opened | None:
        if not address:
            return None

        async def close(grace: float) -> None:
            await self._publisher.stop()

        return Opened((self._publisher.start(address),), close)

    async def _open_frames(self, address: str) -> Opened | None:
        if not address:
            return None
        endpoint = FrameEndpoint(self._controller, self._cameras, address, self._publisher)
        return Opened((endpoint.start(),), endpoint.stop)

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
        endpoint = MetricsEndpoint(metrics.listen, scraper.scrape)
        return Opened((await endpoint.start(),), endpoint.stop)
