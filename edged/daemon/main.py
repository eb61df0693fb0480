"""The composition root: what the daemon consists of, in which order it starts, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from edged import tasks
from edged.api.endpoints.endpoints import Endpoints
from edged.api.endpoints.publisher import Publisher
from edged.api.grpc import grpc_limits
from edged.api.grpc.activation import Activation
from edged.api.grpc.server import GrpcServers
from edged.config import Config
from edged.confinement import confine, settings
from edged.daemon import locations, malloc_trimmer
from edged.daemon.heartbeat import Heartbeat
from edged.daemon.reload import Reloader
from edged.daemon.signals import Signals
from edged.device.fingerprint import probe
from edged.engines.builder import Builder
from edged.engines.child import sweep_scratch
from edged.engines.controller import Controller
from edged.engines.loader import ModelSelection
from edged.errors import ConfigError
from edged.process import end_within
from edged.serving.camera import Cameras
from edged.serving.trace import Tracing
from edged.store.sealed import Background
from edged.store.store import Store
from edged.systemd import Notifier, watchdog_seconds
from edged.version import __version__

_LOG = logging.getLogger("edged")
# That ending builds and hosts may take, once calls have had their time. A unit's TimeoutStopSec covers both.
_CLOSING_SECONDS = 10.0
_THREADS = 32
# Of a state directory that cannot be written: read-only, another user's, full.
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


async def serve(
    config: Config,
    ready: Callable[[list[str]], None] | None = None,
    read: Callable[[], Config] | None = None,
    activation: Activation | None = None,
) -> None:
    """Runs the daemon until a signal ends it (see `edged.daemon.signals`).

    `ready` is told the addresses once calls are answered; `read` gives the configuration anew, where there is something
    to read it from; `activation` has the sockets that systemd has opened. ConfigError when something cannot be used as
    configured.
    """
    signals = Signals()
    with _alone(locations.state_dir(config)):
        await _serve(config, signals, ready, read, activation)


async def _serve(
    config: Config,
    signals: Signals,
    ready: Callable[[list[str]], None] | None,
    read: Callable[[], Config] | None,
    activation: Activation | None,
) -> None:
    tasks.count_callbacks()
    grpc_limits.raise_descriptor_limit()
    # These threads wait for disks: on a slow one the few that there are by default would keep each other waiting.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "worker"))
    tell_confinement = _confine(config)
    notifier = Notifier.of(os.environ)
    guard = locations.guard_of(config)
    models = locations.repository(config)
    models.sweep()
    await asyncio.to_thread(sweep_scratch)
    # One that cannot be used is told of, and models are served without it.
    disk = Background()
    store = Store(locations.cache_dir(config), locations.accepts_foreign(config), disk.put)
    builder = Builder(store, locations.cache_dir(config), config.build, config.admission, disk.put)
    fingerprint = await asyncio.to_thread(probe)
    shelf = ModelSelection(models, config.model_control, config.startup_models)
    controller = Controller(
        *(models, locations.named_models(config), store, builder, fingerprint),
        *(config.hosts, config.engines, shelf, config.health, disk),
    )
    controller.overrides.sweep()
    cameras, publisher = Cameras(), Publisher(controller.events)
    tracing = Tracing(locations.state_dir(config) / "traces")
    servers = GrpcServers(
        controller,
        locations.addresses(config),
        cameras,
        tracing,
        controller.tracking,
        config.max_message_mb,
        config.allow_shared_memory_over_tcp,
        publisher,
        guard=guard,
        activation=activation,
    )
    endpoints = Endpoints(controller, cameras, config, publisher, servers)
    reloader = Reloader(config, read, controller, builder, servers, endpoints, notifier)
    servers.offer_reload(reloader.reload)
    heartbeat = Heartbeat(notifier, watchdog_seconds(os.environ, os.getpid()), controller, reloader)
    # A request that comes first of all finds the models that are there.
    await controller.catalogue.look_aside()
    kept = [
        tasks.keep("control loop", controller.run),
        tasks.keep("heartbeat", heartbeat.run),
        tasks.keep("memory trimming", malloc_trimmer.run),
        tasks.keep("watch of libraries", controller.watch),
        tasks.keep("reload by signal", partial(reloader.run, signals.reload)),
        tasks.keep("watch of tokens and certificates", guard.run),
        tasks.keep("watch of connections", servers.watch),
    ]
    try:
        await servers.start()
        await endpoints.start()
        addresses = [*servers.addresses, *endpoints.addresses]
        counts, held = store.counts, len(store.records())
        _LOG.info("store: %d engines; %d damaged and %d left unfinished removed", held, counts.damaged, counts.strays)
        _LOG.info("edged %s answers on %s", __version__, ", ".join(addresses))
        tell_confinement()
        notifier.ready()
        if ready is not None:
            ready(addresses)
        await signals.stop.wait()
    finally:
        _LOG.info("stopping")
        grace = reloader.config.stop_seconds
        notifier.stopping(grace + 2 * _CLOSING_SECONDS)
        end_within(grace + _CLOSING_SECONDS, _leave_behind)
        await asyncio.gather(endpoints.stop(grace), servers.stop(grace))
        await endpoints.publish.stop(grace)
        await tracing.close()
        await asyncio.to_thread(guard.audit.close)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        await controller.stop()


def _confine(config: Config) -> Callable[[], None]:
    """Closes this process to its children, and has these confined; what it returns logs how, for when the daemon
    serves. ConfigError if the kernel cannot and has to."""
    confine.close_to_others()
    settings.use(config.confinement, locations.private(config))
    lacking = ", ".join(confine.lacking())
    if config.confinement == "off":
        return partial(
            _LOG.warning, 'engine hosts and builds are not confined: the configuration says confinement = "off"'
        )
    if lacking and config.confinement == "enforce":
        raise ConfigError(f'confinement = "enforce", but this kernel lacks {lacking}; "on" does without')
    if lacking:
        return partial(
            _LOG.warning, "engine hosts and builds are confined less than usual: this kernel lacks %s", lacking
        )
    return partial(_LOG.info, "engine hosts and builds are confined to their files: Landlock, seccomp")


def _leave_behind() -> None:
    _LOG.error("something does not end within its time; leaving without it")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the state directory: two daemons on one would clean up after each other. ConfigError when it is taken, or
    is not there. One that cannot be written is served from; an alarm tells of it."""
    try:
        lock = _open_lock(folder)
    except OSError as error:
        raise ConfigError(f"state directory {folder} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another daemon uses the state directory {folder}; choose another by --state") from None
        yield
    finally:
        os.close(lock)


def _open_lock(folder: Path) -> int:
    place = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        return os.open(place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    except OSError as error:
        if error.errno not in _UNWRITABLE or not folder.is_dir():
            raise
    return os.open(place if os.access(place, os.R_OK) else folder, os.O_RDONLY | os.O_CLOEXEC)
