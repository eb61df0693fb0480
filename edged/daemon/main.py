"""The composition root: creates the daemon's parts, and starts and stops them in order.

SIGTERM, SIGINT   stop in order; a second signal stops the daemon at once
SIGHUP            reload the configuration; if the daemon's terminal hung up, stop (but not under nohup)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from edged import tasks
from edged.api.endpoints.endpoints import Endpoints
from edged.api.endpoints.publisher import Publisher
from edged.api.grpc.activation import Activation
from edged.api.grpc.listener import raise_descriptor_limit
from edged.api.grpc.server import GrpcServers
from edged.cameras.supervisor import CameraSupervisor
from edged.config import Config
from edged.confinement import confine, rules
from edged.daemon import locations, malloc_trimmer
from edged.daemon.heartbeat import Heartbeat
from edged.daemon.reload import Reloader
from edged.device.fingerprint import probe
from edged.engines.builder import Builder
from edged.engines.child import sweep_scratch
from edged.engines.controller import Controller
from edged.engines.loader import ModelSelection
from edged.errors import ConfigError
from edged.process import end_within
from edged.serving.camera import Cameras
from edged.serving.trace import Tracing
from edged.store import state_format
from edged.store.sealed import Background
from edged.store.store import Store
from edged.systemd import Notifier, watchdog_seconds
from edged.version import __version__

_LOG = logging.getLogger("edged")
# Time to end builds and hosts, after the grace period of calls. The unit's TimeoutStopSec covers both.
_CLOSING_SECONDS = 10.0
_THREADS = 32
# Errors of a state directory that cannot be written: it is read-only, another user's, or full.
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


async def serve(
    config: Config,
    ready: Callable[[list[str]], None] | None = None,
    read: Callable[[], Config] | None = None,
    activation: Activation | None = None,
) -> None:
    """Run the daemon until a signal ends it.

    `ready` is called with the addresses when the daemon answers calls. `read` reads the configuration again; None if
    there is no configuration file. `activation` has the sockets that systemd opened. Raises ConfigError if something
    cannot be used as configured, and Refused if a newer edged has written the state.
    """
    malloc_trimmer.limit_arenas()  # before threads start
    signals = Signals()
    with _alone(locations.state_dir(config)):
        state_format.prepare(locations.state_dir(config), __version__)
        await _serve(config, signals, ready, read, activation)


async def _serve(
    config: Config,
    signals: Signals,
    ready: Callable[[list[str]], None] | None,
    read: Callable[[], Config] | None,
    activation: Activation | None,
) -> None:
    tasks.count_callbacks()
    raise_descriptor_limit()
    # These threads wait for disks. asyncio's default has so few threads that a slow disk would block all of them.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "worker"))
    tell_confinement = _confine(config)
    notifier = Notifier.of(os.environ)
    guard = locations.guard_of(config)
    models = locations.repository(config)
    models.sweep()
    await asyncio.to_thread(sweep_scratch)
    # If the store cannot be used, an alarm reports this, and models are served without the store.
    disk = Background()
    store = Store(locations.cache_dir(config), locations.accepts_foreign(config), disk.put)
    about = config.build, config.admission, disk.put, config.families.allow
    builder = Builder(store, locations.cache_dir(config), *about)
    fingerprint = await asyncio.to_thread(probe)
    shelf = ModelSelection(models, config.model_control, config.startup_models)
    controller = Controller(
        *(models, locations.named_models(config), store, builder, fingerprint),
        *(config.hosts, config.engines, shelf, config.health, disk),
    )
    controller.overrides.sweep()
    controller.pipelines.reconfigure(config.pipelines)
    controller.describer.reconfigure(config.describe)
    controller.frames.reconfigure(config.frames)
    controller.drift.reconfigure(config.drift)
    controller.sharing.reconfigure(config.fleet)
    cameras, publisher = Cameras(), Publisher(controller.events)
    cameras.taps = (controller.frames, controller.drift, controller.describer)
    supervisor = CameraSupervisor(locations.cameras(config), controller.events, locations.state_dir(config) / "events")
    controller.describer.give = supervisor.describe
    tracing = Tracing(locations.state_dir(config) / "traces")
    servers = GrpcServers(
        controller,
        locations.addresses(config),
        cameras,
        supervisor,
        tracing,
        config.max_message_mb,
        config.allow_shared_memory_over_tcp,
        publisher,
        guard,
        activation,
    )
    endpoints = Endpoints(controller, cameras, config, publisher, servers)
    reloader = Reloader(config, read, controller, builder, servers, endpoints, supervisor, notifier)
    servers.offer_reload(reloader.reload)
    heartbeat = Heartbeat(notifier, watchdog_seconds(os.environ, os.getpid()), controller, reloader)
    cleanup = contextlib.ExitStack()
    # The first request must already find the models.
    await controller.catalogue.look_aside()
    kept = list[asyncio.Task[None]]()
    try:
        await servers.start()
        await endpoints.start()
        state_format.claim(locations.state_dir(config), __version__)
        kept += [
            tasks.keep("control loop", controller.run),
            tasks.keep("heartbeat", heartbeat.run),
            tasks.keep("collection of frames", controller.frames.run),
            tasks.keep("memory trimming", malloc_trimmer.run),
            tasks.keep("watch of libraries", controller.watch),
            tasks.keep("publishing of engines", controller.sharing.run),
            tasks.keep("reload by signal", partial(reloader.run, signals.reload)),
            tasks.keep("watch of tokens and certificates", guard.run),
        ]
        addresses = [*servers.addresses, *endpoints.addresses]
        counts, held = store.counts, len(store.records())
        _LOG.info("store: %d engines; removed %d damaged and %d unfinished", held, counts.damaged, counts.strays)
        _LOG.info("edged %s answers on %s", __version__, ", ".join(addresses))
        tell_confinement()
        notifier.ready()
        await supervisor.start(partial(_listen_for_cameras, servers, cleanup))
        if ready is not None:
            ready(addresses)
        await signals.stop.wait()
    finally:
        _LOG.info("stopping")
        grace = reloader.config.stop_seconds
        notifier.stopping(grace + 2 * _CLOSING_SECONDS)
        end_within(grace + _CLOSING_SECONDS, _leave_behind)
        await supervisor.stop()
        await asyncio.gather(endpoints.stop(grace), servers.stop(grace))
        cleanup.close()
        await endpoints.publish.stop(grace)
        await tracing.close()
        await asyncio.to_thread(guard.audit.close)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        await controller.stop()


async def _listen_for_cameras(servers: GrpcServers, cleanup: contextlib.ExitStack) -> str:
    """Open a socket that only this user can reach, for the processes of configured cameras. Return the address."""
    folder = tempfile.mkdtemp(prefix=f"edged-{os.getpid()}-")  # `sweep_scratch` removes leftovers with this prefix
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    return await servers.open(f"unix:{folder}/cameras.sock")


def _confine(config: Config) -> Callable[[], None]:
    """Protect this process from its children, and set how the children are confined. Return a function that logs the
    confinement.

    Raises ConfigError if the configuration demands restrictions that the kernel lacks.
    """
    confine.close_to_others()
    rules.use(config.confinement, locations.private(config))
    lacking = ", ".join(confine.lacking())
    if config.confinement == "off":
        return partial(
            _LOG.warning, 'engine hosts and builds are not confined: the configuration says confinement = "off"'
        )
    if lacking and config.confinement == "enforce":
        raise ConfigError(
            f'confinement = "enforce" is not possible, because this kernel lacks {lacking}; to run with the other'
            ' restrictions, set confinement = "on"'
        )
    if lacking:
        return partial(_LOG.warning, "engine hosts and builds are confined only in part: this kernel lacks %s", lacking)
    return partial(_LOG.info, "engine hosts and builds are confined to their files: Landlock, seccomp")


def _leave_behind() -> None:
    _LOG.error("some tasks did not end in time; the daemon exits without waiting for them")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the state directory, because two daemons would remove each other's files.

    Raises ConfigError if another daemon holds the lock, or if the directory cannot be created or opened. A read-only
    directory can be used, but an alarm reports it.
    """
    try:
        lock = _open_lock(folder)
    except OSError as error:
        raise ConfigError(f"state directory {folder} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another daemon uses the state directory {folder}; choose a different directory with --state"
            ) from None
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


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def has_terminal() -> bool:
    """Whether this process has a terminal. A terminal that hung up cannot be opened (tty(4), ENXIO)."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Signals:
    """Handles the signals of the daemon in the running event loop, from the creation of this object."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()  # set when the daemon must stop
        self.reload = asyncio.Event()  # set when it must reload its configuration; the reloader clears it
        self._loop = asyncio.get_running_loop()
        # If SIGHUP is ignored, as with nohup, the daemon must outlive the terminal.
        self._had_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._leave, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        if self._had_terminal and not has_terminal():
            self._leave(signal.SIGHUP)
        else:
            self.reload.set()

    def _leave(self, number: signal.Signals) -> None:
        _LOG.info("%s: finishing requests in flight, then stopping; a second signal stops at once", number.name)
        self.stop.set()
        for each in (*_STOPPING, signal.SIGHUP):
            self._loop.remove_signal_handler(each)
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a stopping daemon does not reload
