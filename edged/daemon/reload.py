"""A running daemon gets another configuration: only what changed is touched, and what is wrong changes nothing."""

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
    """Knows the configuration that is in force. `read` gives the one that is to be, None where there is nothing to read
    it from."""

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
        self.problem = ""  # why the last configuration that was read is not in force, wholly or in parts
        self._read, self._controller, self._builder = read, controller, builder
        self._ingress, self._endpoints, self._notifier = servers, endpoints, notifier
        self._turn = asyncio.Lock()

    async def run(self, wanted: asyncio.Event) -> None:
        """Reloads whenever that is set, for somebody who only reads the log; until cancelled."""
        while True:
            await wanted.wait()
            wanted.clear()
            try:
                if not await self.reload():
                    _LOG.info("the configuration was read again: nothing changed")
            except EdgedError as error:
                _LOG.error("the configuration is not reloaded, and the daemon goes on as it was: %s", error)
            except Exception:
                _LOG.exception("reloading the configuration failed with an unexpected error")

    async def reload(self) -> tuple[Outcome, ...]:
        """Reads the configuration again; what changed, and what became of it.

        ConfigError, or InvalidInput for a model's name, where it is wrong: then everything goes on as it was. Refused
        where there is nothing to read.
        """
        if self._read is None:
            raise Refused("this daemon was started without a configuration file; there is nothing to read again")
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
        """Puts one change in force; what cannot be stays as it was, and the next reload tries it again."""
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
        """Why a part could not be touched; empty where it was. EdgedError where it refuses."""
        grace = self.config.stop_seconds
        if part is Part.START:
            return _LATER
        if part is Part.LISTENERS:
            await self._listen(wanted, grace)
        elif part is Part.TLS:
            await self._ingress.guard.reconfigure_tls(wanted.tls)
        elif part is Part.ACCESS:
            await self._ingress.guard.reconfigure(wanted.access, locations.addresses(wanted), locations.beside(wanted))
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
            self._ingress.inference.log_again()
        elif part is Part.SHARED_MEMORY:
            self._ingress.inference.allow_shared_memory_over_tcp(wanted.allow_shared_memory_over_tcp)
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
        """All of the addresses that are new, or none of them; then those that are gone are given up."""
        wanted = locations.addresses(config)
        before = locations.addresses(self.config)
        opened: list[str] = []
        self._ingress.guard.split(locations.split_sockets(config))
        try:
            for address in dict.fromkeys(wanted):
                if address not in before:
                    await self._ingress.open(address)
                    opened.append(address)
        except ConfigError:
            for address in opened:
                self._ingress.close(address, 0.0)
            self._ingress.guard.split(locations.split_sockets(self.config))
            raise
        for address in dict.fromkeys(before):
            if address not in wanted:
                self._ingress.close(address, grace)
