"""Reloads the configuration of a running daemon. Only changed parts are affected. An invalid file changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from edged import logs
from edged.api.endpoints.endpoints import Endpoints
from edged.api.grpc.server import GrpcServers
from edged.cameras.supervisor import CameraSupervisor
from edged.config import Config
from edged.config.changes import RELOADS, Change, diff, with_value
from edged.config.schema import Reload
from edged.daemon import locations
from edged.engines.builder import Builder
from edged.engines.controller import Controller
from edged.errors import ConfigError, EdgedError, Refused
from edged.systemd import Notifier
from edged.tasks import despite_cancelling

_LOG = logging.getLogger("edged")
_LATER = "the change takes effect when the daemon is restarted"
_ENDPOINTS = frozenset({"listen", "http", "page", "metrics"})  # keys of the listeners that `access` controls
_NO_ACCESS = "the change of [access] was refused; the old value stays in force"


class Reloader:
    """Holds the configuration in force. `read` reads the new configuration; None if there is no configuration file."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config] | None,
        controller: Controller,
        builder: Builder,
        servers: GrpcServers,
        endpoints: Endpoints,
        supervisor: CameraSupervisor,
        notifier: Notifier,
    ) -> None:
        self.config = config
        self.problem = ""  # why the last configuration is not, or only partly, in force
        self._read, self._controller, self._builder = read, controller, builder
        self._servers, self._endpoints, self._supervisor = servers, endpoints, supervisor
        self._notifier = notifier
        self._turn = asyncio.Lock()

    async def run(self, wanted: asyncio.Event) -> None:
        """Reload each time the event is set, and log the result, until cancelled."""
        while True:
            await wanted.wait()
            wanted.clear()
            try:
                if not await self.reload():
                    _LOG.info("the configuration was read again: nothing changed")
            except EdgedError as error:
                _LOG.error("the configuration cannot be reloaded, and the old configuration stays in force: %s", error)
            except Exception:
                _LOG.exception(
                    "reloading the configuration failed with an unexpected error; some changes may not be in force"
                )

    async def reload(self) -> tuple[Change, ...]:
        """Read the configuration again and return the result of each change.

        Raises ConfigError if the configuration is invalid, and InvalidInput if the name of a model is invalid; in both
        cases nothing changes. Raises Refused if the daemon has no configuration file.

        If this task is cancelled, for example because the client goes away, the reload still runs to its end. A reload
        that ends early could leave an endpoint closed that it was about to open again.
        """
        if (read := self._read) is None:
            raise Refused(
                "nothing can be reloaded: this daemon was started without a configuration file; restart it with a file"
            )
        outcomes: list[Change] = []

        async def work() -> None:
            outcomes.extend(await self._reload(read))

        await despite_cancelling(work())
        return tuple(outcomes)

    async def _reload(self, read: Callable[[], Config]) -> tuple[Change, ...]:
        async with self._turn:
            self._notifier.reloading()
            try:
                wanted = await asyncio.to_thread(read)
                locations.named_models(wanted)
                outcomes = await self._make_all(diff(self.config, wanted), wanted)
            except EdgedError as error:
                self.problem = f"configuration refused: {error}"
                raise
            except Exception:
                self.problem = "the last reload failed with an unexpected error; see the daemon's log"
                raise
            finally:
                self._notifier.ready()
            self.problem = "; ".join(f"not in force: {outcome}" for outcome in outcomes if outcome.problem)
            return outcomes

    async def _make_all(self, changes: Sequence[Change], wanted: Config) -> tuple[Change, ...]:
        """Apply changes, and return them with their outcomes. `access` comes first, so that a new address does not open
        with the old roles."""
        outcomes: dict[str, Change] = {}
        for change in sorted(changes, key=lambda change: change.key != "access"):
            access = outcomes.get("access")
            is_refused = access is not None and bool(access.problem)
            problem = _NO_ACCESS if is_refused and change.key in _ENDPOINTS else ""
            outcomes[change.key] = await self._make(change, wanted, problem)
        return tuple(outcomes[change.key] for change in changes)

    async def _make(self, change: Change, wanted: Config, problem: str) -> Change:
        """Apply one change unless it has a problem, and return the change with its outcome. If the change cannot be
        applied, the old value stays, and the next reload tries again."""
        if RELOADS[change.key] is Reload.RESTART:
            problem = _LATER
        if not problem:
            try:
                await self._apply(change.key, wanted)
            except EdgedError as error:
                problem = f"{error}; the old value stays in force"
        outcome = msgspec.structs.replace(change, problem=problem)
        if not problem:
            self.config = with_value(self.config, wanted, change.key)
        _LOG.log(logging.WARNING if problem else logging.INFO, "reloaded: %s", outcome)
        return outcome

    async def _apply(self, key: str, wanted: Config) -> None:
        """Apply the new value of a key. Raises EdgedError if that fails."""
        grace, guard, inference = self.config.stop_seconds, self._servers.guard, self._servers.inference
        match key:
            case "listen":
                await self._listen(wanted, grace)
            case "tls":
                await guard.reconfigure_tls(wanted.tls)
            case "access":
                addresses, http = locations.addresses(wanted), locations.guarded_http(wanted)
                await guard.reconfigure(wanted.access, addresses, http, locations.unguarded_http(wanted))
                self._controller.accept_foreign(locations.accepts_foreign(wanted))
            case "models":
                self._controller.catalogue.name(locations.named_models(wanted))
                self._controller.wake()
            case "frames":
                self._controller.frames.reconfigure(wanted.frames)
            case "pipelines":
                self._controller.pipelines.reconfigure(wanted.pipelines)
                self._controller.wake()
            case "describe":
                self._controller.describer.reconfigure(wanted.describe)
            case "admission" | "build":
                self._builder.reconfigure(wanted.build, wanted.admission)
            case "engines" | "hosts" | "health":
                self._controller.reconfigure(wanted.engines, wanted.hosts, wanted.health)
            case "drift":
                self._controller.drift.reconfigure(wanted.drift)
            case "fleet":
                self._controller.sharing.reconfigure(wanted.fleet)
            case "families":
                self._builder.families.allow(wanted.families.allow)
                await self._controller.look_at_families()
            case "log":
                logs.reconfigure(wanted.log)
                inference.log_again()
            case "allow_shared_memory_over_tcp":
                inference.allow_shared_memory_over_tcp(wanted.allow_shared_memory_over_tcp)
            case "stop_seconds":
                pass  # read when the daemon stops
            case "frigate":
                await self._endpoints.frigate.change(wanted.frigate, grace)
            case "zmq.frames":
                await self._endpoints.frames.change(wanted.zmq.frames, grace)
            case "zmq.publish":
                await self._endpoints.publish.change(wanted.zmq.publish, grace)
            case "http":
                await self._endpoints.http.change(wanted.http, grace)
            case "page":
                await self._endpoints.page.change(wanted.page, grace)
            case "metrics":
                await self._endpoints.metrics.change(wanted.metrics, grace)
            case "cameras":
                await self._supervisor.reconfigure(wanted.cameras)
            case _:
                raise AssertionError(key)

    async def _listen(self, config: Config, grace: float) -> None:
        """Open all new addresses, then close the removed addresses. If an address cannot be opened, the daemon keeps
        exactly the old addresses."""
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
