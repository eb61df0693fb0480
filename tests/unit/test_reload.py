"""Reloading: the part of the daemon that applies each key of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edged.config import (
    Access,
    Config,
    Describe,
    Drift,
    Engines,
    Families,
    Fleet,
    Frames,
    Frigate,
    Health,
    Http,
    Metrics,
    Page,
    Pipeline,
    Tls,
    Zmq,
)
from edged.config.cameras import Camera
from edged.config.changes import RELOADS, value, with_value
from edged.config.child_limits import AdmissionLimits, HostLimits, Limits
from edged.config.schema import Reload
from edged.daemon.reload import Reloader
from edged.errors import ConfigError
from edged.logs.output import LogOptions

DEFAULTS = Config(model_control="explicit")  # the only mode with `startup_models`
OTHER = Config(
    listen=("localhost:1",),
    state="/s",
    cache="/c",
    model_control="explicit",
    startup_models=("m",),
    max_message_mb=1,
    allow_shared_memory_over_tcp=True,
    confinement="off",
    stop_seconds=1.0,
    models={"m": "/m.onnx"},
    engines=Engines(budget_mb=1),
    admission=AdmissionLimits(seconds=1.0),
    build=Limits(1.0),
    hosts=HostLimits(1),
    health=Health(probe_seconds=1.0),
    drift=Drift(every_seconds=600.0),
    families=Families(allow=("x",)),
    fleet=Fleet(publish=True),
    frigate=Frigate(),
    zmq=Zmq(frames="ipc:///f", publish="ipc:///p"),
    http=Http(listen="localhost:2"),
    metrics=Metrics(listen="localhost:3"),
    page=Page(listen="localhost:4"),
    tls=Tls(certificate="/c.pem", key="/k.pem"),
    access=Access(tokens_file="/t"),
    log=LogOptions(level="debug"),
    frames=Frames(keep_days=1.0),
    describe={"gate": Describe(camera="gate", model="m")},
    pipelines={"plates": Pipeline(detect="m", then="n")},
    cameras={"hall": Camera(source="hall.mp4", model="m")},
)


class Recorder:
    """Stands for any part of the daemon: every attribute can be called and awaited, and its name is recorded."""

    def __init__(self, called: list[str]) -> None:
        self._called = called

    def __getattr__(self, name: str) -> Recorder:
        self._called.append(name)
        return self

    def __call__(self, *arguments: object) -> Recorder:
        return self

    def __await__(self) -> Generator[Any, Any, Recorder]:
        yield from ()
        return self


@pytest.mark.parametrize("key", RELOADS)
async def test_reload_applies_every_key_or_asks_for_a_restart(key: str) -> None:
    other = Config(model_control="none") if key == "model_control" else OTHER
    wanted, called = with_value(DEFAULTS, other, key), list[str]()
    assert value(wanted, key) != value(DEFAULTS, key), "give OTHER a value that differs from the default"
    part = cast(Any, Recorder(called))
    reloader = Reloader(DEFAULTS, lambda: wanted, part, part, part, part, part, part)
    (change,) = await reloader.reload()
    assert change.key == key
    assert bool(change.problem) == (RELOADS[key] is Reload.RESTART)
    assert (value(reloader.config, key) == value(wanted, key)) != bool(change.problem)


async def test_reload_by_a_client_that_goes_away_is_completed() -> None:
    """An endpoint stays closed if the reload ends between closing and opening."""
    closed, opened = asyncio.Event(), asyncio.Event()

    async def change(*_: object) -> None:
        closed.set()
        await asyncio.sleep(0.05)
        opened.set()

    wanted, part = with_value(DEFAULTS, OTHER, "http"), cast(Any, Recorder([]))
    endpoints = cast(Any, SimpleNamespace(http=SimpleNamespace(change=change)))
    reloader = Reloader(DEFAULTS, lambda: wanted, part, part, part, endpoints, part, part)
    reload = asyncio.create_task(reloader.reload())
    await closed.wait()
    reload.cancel()
    await asyncio.wait([reload])
    assert reload.cancelled()
    assert opened.is_set()
    assert reloader.config.http == OTHER.http


async def test_reload_that_fails_unexpectedly_is_shown_as_a_problem() -> None:
    def read() -> Config:
        raise RuntimeError("a defect")

    part = cast(Any, Recorder([]))
    reloader = Reloader(DEFAULTS, read, part, part, part, part, part, part)
    with pytest.raises(RuntimeError):
        await reloader.reload()
    assert "unexpected error" in reloader.problem


@pytest.mark.parametrize("refusal", [None, ConfigError("tokens_file has the wrong mode")])
async def test_reload_opens_addresses_with_the_new_access_or_not_at_all(refusal: ConfigError | None) -> None:
    done: list[str] = []

    async def reconfigure(*_: object) -> None:
        if refusal is not None:
            raise refusal
        done.append("access")

    async def change(*_: object) -> None:
        done.append("http")

    wanted = with_value(with_value(with_value(DEFAULTS, OTHER, "http"), OTHER, "access"), OTHER, "stop_seconds")
    part = cast(Any, Recorder([]))
    guard = cast(Any, SimpleNamespace(reconfigure=reconfigure))
    servers = cast(Any, SimpleNamespace(guard=guard, inference=part))
    endpoints = cast(Any, SimpleNamespace(http=SimpleNamespace(change=change)))
    reloader = Reloader(DEFAULTS, lambda: wanted, part, part, servers, endpoints, part, part)
    outcomes = {change.key: change.problem for change in await reloader.reload()}
    assert list(outcomes) == [key for key in RELOADS if key in outcomes], "in the order of the schema"
    assert done == (["access", "http"] if refusal is None else [])
    assert [key for key, problem in outcomes.items() if problem] == ([] if refusal is None else ["http", "access"])
    assert reloader.config.http == (OTHER if refusal is None else DEFAULTS).http
