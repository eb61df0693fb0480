"""The composition root: what the daemon consists of, in which order it starts, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from edged import paths
from edged.build.builder import Builder
from edged.config import Config
from edged.control.controller import Controller
from edged.control.shelf import Shelf
from edged.device.fingerprint import probe
from edged.errors import ConfigError
from edged.ingress.lanes import Lanes
from edged.ingress.rest.listener import HttpListener
from edged.ingress.server import Ingress
from edged.model.repository import Repository, check_name
from edged.serving.camera import Cameras
from edged.serving.link import sweep_socket_folders
from edged.serving.trace import Tracing
from edged.store.store import Store
from edged.version import __version__

_LOG = logging.getLogger("edged")
# The terminal going away is a reason to leave in order, too.
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def state_dir(config: Config) -> Path:
    """Where models are kept."""
    return Path(config.state).absolute() if config.state else paths.default_state_dir()


def cache_dir(config: Config) -> Path:
    """Where engines are kept."""
    return Path(config.cache).absolute() if config.cache else paths.default_cache_dir()


def repository(config: Config) -> Repository:
    """The models below the state directory."""
    return Repository(state_dir(config) / "models")


async def serve(config: Config, ready: Callable[[list[str]], None] | None = None) -> None:
    """Runs the daemon until SIGTERM, SIGINT or SIGHUP; a second signal ends it at once.

    `ready` is told the addresses once calls are answered. ConfigError when something cannot be used as configured.
    """
    with _alone(state_dir(config)):
        await _serve(config, ready)


async def _serve(config: Config, ready: Callable[[list[str]], None] | None) -> None:
    stop = _stop_on_signals()
    models = repository(config)
    models.sweep()
    sweep_socket_folders()
    store = Store(cache_dir(config))  # one that cannot be used is told of, and models are served without it
    builder = Builder(store, cache_dir(config), config.build)
    fingerprint = await asyncio.to_thread(probe)
    shelf = Shelf(models, config.model_control, config.startup_models)
    controller = Controller(models, _named(config), store, builder, fingerprint, config.hosts, config.engines, shelf)
    controller.overrides.sweep()
    cameras = Cameras()
    lanes = Lanes(controller, cameras, config)
    tracing = Tracing(state_dir(config) / "traces")
    listen = config.listen or (f"unix:{paths.default_socket()}",)
    ingress = Ingress(
        controller,
        listen,
        cameras,
        tracing,
        controller.tracking,
        config.max_message_mb,
        config.allow_shared_memory_over_tcp,
        lanes.publisher,
    )
    web = HttpListener(config.http, ingress.calls, ingress.cameras)
    loop = asyncio.create_task(controller.run())
    watch = asyncio.create_task(controller.watch())
    await ingress.start()
    try:
        lanes.start()
        await web.start()
        addresses = [*ingress.addresses, *lanes.addresses, *web.addresses]
        counts, held = store.counts, len(store.records())
        _LOG.info("store: %d engines; %d damaged and %d left unfinished removed", held, counts.damaged, counts.strays)
        _LOG.info("edged %s answers on %s", __version__, ", ".join(addresses))
        if ready is not None:
            ready(addresses)
        await asyncio.wait([loop, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        if loop.done():
            loop.result()  # the control loop never ends by itself: show why it did
    finally:
        _LOG.info("stopping")
        grace = config.stop_seconds
        await asyncio.gather(web.stop(grace), lanes.stop(grace), ingress.stop(grace))
        await lanes.publisher.stop()
        await tracing.close()
        for task in (loop, watch):
            task.cancel()
        await asyncio.gather(loop, watch, return_exceptions=True)
        await controller.stop()


def _named(config: Config) -> dict[str, Path]:
    """The models that the configuration names, served where they lie."""
    for name in config.models:
        check_name(name)
    return {name: Path(path).absolute() for name, path in config.models.items()}


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the state directory: two daemons on one would clean up after each other. ConfigError when it is taken."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
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


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def first(number: signal.Signals) -> None:
        _LOG.info("%s: answering what is in flight, then leaving; once more to leave now", number.name)
        stop.set()
        for each in _STOPPING:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for number in _STOPPING:
        loop.add_signal_handler(number, first, number)
    return stop
