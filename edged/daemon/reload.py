"""Reloads the configuration of a running daemon: only changed parts are touched, and mistakes change nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from edged import logs
from edged.api.endpoints.endpoints import Endpoints
from edged.api.grpc.server import GrpcServers
from edged.config import Config
from edged.config.changes import Change, Outcome, Part, diff, with_value
from edged.daemon import locations
from edged.engines.builder import Builder
from edged.engines.controller import Controller
from edged.errors import ConfigError, EdgedError, Refused
from edged.systemd import Notifier

_LOG = logging.getLogger("edged")
_LATER = "it takes effect when the daemon is started again"


class Reloader:
    """Holds the configuration in force. `read` reads the new one; None without a file."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config] | None,
        controller: Controller,
        builder: Builder,
        servers: GrpcServers,
        endpoints: Endpoints,
        notifier: Notifier,
    ) -> None:
        self.config = config
        self.problem = ""  # why the last configuration is not in force, or not all of it
        self._read, self._controller, self._builder = read, controller, builder
        self._servers, self._endpoints, self._notifier = servers, endpoints, notifier
        self._turn = asyncio.Lock()

    async def run(self, wanted: asyncio.Event) -> None:
        """Reload whenever the event is set, and log the result; until cancelled."""
        while True:
            await wanted.wait()
            wanted.clear()
            try:
                if not await self.reload():
                    _LOG.info("the configuration was read again: nothing changed")
            except EdgedError as error:
                _LOG.error("cannot reload the configuration, the old one stays in force: %s", error)
            except Exception:
                _LOG.exception("reloading the configuration failed with an unexpected error")

    async def reload(self) -> tuple[Outcome, ...]:
        """Read the configuration again and return the result of each change.

        ConfigError, or InvalidInput for a model's name, if it is wrong: then nothing changes. Refused without a file.
        """
        if self._read is None:
            raise Refused("this daemon was started without a configuration file; restart it with one to reload")
        async with self._turn:
            self._notifier.reloading()
            try:
                wanted = await asyncio.to_thread(self._read)
                locations.named_models(wanted)
                outcomes = tuple([await self._make(change, wanted) for change in diff(self.config, wanted)])
            except EdgedError as error:
                self.problem = f"configuration refused: {error}"
                raise
            finally:
                self._notifier.ready()
            self.problem = "; ".join(f"not in force: {outcome}" for outcome in outcomes if outcome.problem)
            return outcomes

    async def _make(self, change: Change, wanted: Config) -> Outcome:
        """Apply one change; if that fails the old value stays, and the next reload tries again."""
        problem = ""
        try:
            problem = await self._touch(change.part, wanted)
        except EdgedError as error:
            problem = f"{error}; it stays as it was"
        outcome = Outcome(change.key, change.told, problem)
        if not problem:
            self.config = with_value(self.config, wanted, change.key)
        _LOG.log(logging.WARNING if problem else logging.INFO, "reloaded: %s", outcome)
        return outcome

    async def _touch(self, part: Part, wanted: Config) -> str:
        """Apply a part. Return why it has to wait, or empty. EdgedError if it refuses."""
        grace = self.config.stop_seconds
        if part is Part.START:
            return _LATER
        if part is Part.LISTENERS:
            await self._listen(wanted, grace)
        elif part is Part.TLS:
            await self._servers.guard.reconfigure_tls(wanted.tls)
        elif part is Part.ACCESS:
            await self._servers.guard.reconfigure(
                wanted.access, locations.addresses(wanted), locations.guarded_http(wanted)
            )
            self._controller.accept_foreign(locations.accepts_foreign(wanted))
        elif part is Part.MODELS:
            self._controller.catalogue.name(locations.named_models(wanted))
            self._controller.wake()
        elif part is Part.BUILDS:
            self._builder.reconfigure(wanted.build, wanted.admission)
        elif part in (Part.ENGINES, Part.HOSTS, Part.HEALTH):
            self._controller.reconfigure(wanted.engines, wanted.hosts, wanted.health)
        elif part is Part.LOG:
            logs.reconfigure(wanted.log)
            self._servers.inference.log_again()
        elif part is Part.SHARED_MEMORY:
            self._servers.inference.allow_shared_memory_over_tcp(wanted.allow_shared_memory_over_tcp)
        elif part is not Part.STOPPING:
            await self._reopen(part, wanted, grace)
        return ""

    async def _reopen(self, part: Part, wanted: Config, grace: float) -> None:
        endpoints = self._endpoints
        if part is Part.FRIGATE:
            await endpoints.frigate.change(wanted.frigate, grace)
        elif part is Part.FRAMES:
            await endpoints.frames.change(wanted.zmq.frames, grace)
        elif part is Part.PUBLISH:
            await endpoints.publish.change(wanted.zmq.publish, grace)
        elif part is Part.HTTP:
            await endpoints.http.change(wanted.http, grace)
        elif part is Part.METRICS:
            await endpoints.metrics.change(wanted.metrics, grace)
        else:
            raise AssertionError(part)

    async def _listen(self, config: Config, grace: float) -> None:
        """Open all new addresses, or none if one fails; then close the removed ones."""
        wanted = locations.addresses(config)
        before = locations.addresses(self.config)
        opened: list[str] = []
        self._servers.guard.split(locations.split_sockets(config))
        try:
            for address in dict.fromkeys(wanted):
                if address not in before:
                    await self._servers.open(address)
                    opened.append(address)
        except ConfigError:
            for address in opened:
                self._servers.close(address, 0.0)
            self._servers.guard.split(locations.split_sockets(self.config))
            raise
        for address in dict.fromkeys(before):
            if address not in wanted:
                self._servers.close(address, grace)
