"""The endpoints besides gRPC: HTTP, the page, Frigate, frames over ZeroMQ, published results, and metrics.

Each endpoint has its own settings. A change of these settings closes and opens only that endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edged.api.endpoints.frigate import FrigateEndpoint
from edged.api.endpoints.publisher import Publisher
from edged.api.endpoints.zmq_frames import FrameEndpoint
from edged.api.grpc.server import GrpcServers
from edged.config import Config, Frigate, Http, Metrics, Page
from edged.engines.controller import Controller
from edged.errors import ConfigError
from edged.metrics.endpoint import Endpoint as MetricsEndpoint
from edged.serving.camera import Cameras

Setting = TypeVar("Setting")

# ZeroMQ closes sockets and removes their files in its own thread: a socket opened again too early loses its file.
_PAUSE_SECONDS = 0.3
_TRIES = 5  # a closed port may stay taken for a moment

_ACCESS_LOG = logging.getLogger("edged.access")


@dataclass(frozen=True)
class Opened:
    """An open endpoint. `close` stops accepting requests, and lets running requests end within the given number of
    seconds."""

    addresses: tuple[str, ...]
    close: Callable[[float], Awaitable[None]]


class Endpoint(Generic[Setting]):
    """One endpoint, which is closed until `start`. `open` opens it with a setting, and returns None if the setting
    disables it. If `open` raises ConfigError, it must leave nothing open."""

    def __init__(
        self, setting: Setting, open: Callable[[Setting], Awaitable[Opened | None]], *, pause: float = _PAUSE_SECONDS
    ) -> None:
        """`pause`: seconds between closing and opening again, and between attempts to open."""
        self._setting, self._open, self._pause = setting, open, pause
        self._opened: Opened | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that the endpoint listens on; empty while the endpoint is closed."""
        return self._opened.addresses if self._opened is not None else ()

    async def start(self) -> None:
        """Open the endpoint if it is enabled. Raises ConfigError."""
        self._opened = await self._open(self._setting)

    async def stop(self, grace: float) -> None:
        """Stop accepting requests, and let running requests end within `grace` seconds."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close(grace)

    async def change(self, setting: Setting, grace: float) -> None:
        """Open the endpoint again with another setting. If that raises ConfigError, open it with the previous setting,
        and raise the error."""
        was_open = self._opened is not None
        await self.stop(grace)
        if was_open:
            await asyncio.sleep(self._pause)
        try:
            self._opened = await self._again(setting, _TRIES if was_open else 1)
        except ConfigError:
            self._opened = await self._again(self._setting, _TRIES)
            raise
        self._setting = setting

    async def _again(self, setting: Setting, tries: int) -> Opened | None:
        for _ in range(tries - 1):
            try:
                return await self._open(setting)
            except ConfigError:
                await asyncio.sleep(self._pause)
        return await self._open(setting)


class Endpoints:
    """The configured endpoints. All results go to `publisher`."""

    def __init__(
        self, controller: Controller, cameras: Cameras, config: Config, publisher: Publisher, servers: GrpcServers
    ) -> None:
        self._controller, self._cameras, self._publisher, self._ingress = controller, cameras, publisher, servers
        self.publish = Endpoint(config.zmq.publish, self._open_publish)
        self.frames = Endpoint(config.zmq.frames, self._open_frames)
        self.frigate = Endpoint(config.frigate, self._open_frigate)
        self.http = Endpoint(config.http, self._open_http)
        self.page = Endpoint(config.page, self._open_page)
        self.metrics = Endpoint(config.metrics, self._open_metrics)

    @property
    def _all(self) -> tuple[Endpoint[Any], ...]:
        return self.publish, self.frames, self.frigate, self.http, self.page, self.metrics

    @property
    def addresses(self) -> list[str]:
        """The addresses of all endpoints."""
        return [address for endpoint in self._all for address in endpoint.addresses]

    async def start(self) -> None:
        """Open all endpoints. After a ConfigError, call `stop` and `publish.stop` to close the open endpoints."""
        for endpoint in self._all:
            await endpoint.start()

    async def stop(self, grace: float) -> None:
        """Stop all endpoints except the publisher, and let running requests end within `grace` seconds. The publisher
        stays open, since these requests may still publish results."""
        await asyncio.gather(*(endpoint.stop(grace) for endpoint in self._all if endpoint is not self.publish))

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
        return Opened((endpoint.start(),), endpoint.stop)

    async def _open_http(self, http: Http) -> Opened | None:
        if not http.listen:
            return None
        from edged.api.http.app import HttpListener  # imports uvicorn, which many boxes do not need

        is_open = http.listen in self._ingress.guard.access.unencrypted
        if is_open:
            _ACCESS_LOG.warning(
                "[http] %s is open to every client that reaches it, without TLS (see access.unencrypted)", http.listen
            )
        listener = HttpListener(http, self._ingress.calls, self._ingress.guard, is_open)
        try:
            await listener.start()
        except BaseException:
            await listener.stop(0.0)
            raise
        return Opened((listener.address,), listener.stop)

    async def _open_page(self, page: Page) -> Opened | None:
        if not page.listen:
            return None
        from edged.api.page.listener import PageListener  # imports uvicorn too

        operations = self._ingress.operations
        listener = PageListener(page, self._controller, operations, self._ingress.guard)
        await listener.start()
        operations.page = listener.address

        async def close(grace: float) -> None:
            operations.page = ""
            await listener.stop(grace)

        return Opened((listener.address,), close)

    async def _open_metrics(self, metrics: Metrics) -> Opened | None:
        if not metrics.listen:
            return None
        from edged.metrics.scrape import Scraper  # imports Prometheus' client library

        counts, guard = self._ingress.event_counts, self._ingress.guard
        scraper = Scraper(self._controller, self._cameras, counts, guard, self._ingress.supervisor)
        is_open = metrics.listen in guard.access.unencrypted
        if is_open:
            _ACCESS_LOG.warning(
                "[metrics] %s is open to every client that reaches it, without TLS (see access.unencrypted)",
                metrics.listen,
            )
        endpoint = MetricsEndpoint(metrics.listen, scraper.scrape, is_open=is_open)
        return Opened((await endpoint.start(),), endpoint.stop)
