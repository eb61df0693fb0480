"""grpc.health.v1 without a server: the status of services and models, and updates to watchers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from edged.api.grpc.health import HealthService
from edged.config import Health, Pipeline
from edged.engines.pipelines import Pipelines
from edged.engines.plan import PlannedModel
from edged.engines.readiness import readiness
from edged.errors import NotFound, NotReady
from tests.unit.control_room import model, planned_model, serve, settle

Status = health_pb2.HealthCheckResponse
NONE: Any = None


class World:
    """A daemon with one service and the models that a test adds."""

    def __init__(self) -> None:
        self.models: dict[str, PlannedModel] = {}
        self.pipelines = Pipelines(self.models, self.models.__getitem__)
        controller: Any = SimpleNamespace(
            served=lambda: list(self.models.values()),
            readiness=lambda planned: readiness(planned, Health()),
            health=Health(),
            pipelines=self.pipelines,
            language=SimpleNamespace(models={}),
        )
        self.service = HealthService(controller, ["edged.v1.Cameras"])

    def add(self, name: str, *, ready: bool) -> PlannedModel:
        planned = self.models[name] = planned_model(name)
        planned.model = model(name)
        if ready:
            serve(planned, "key")
        return planned

    async def check(self, name: str) -> int:
        status: int = (await self.service.check(health_pb2.HealthCheckRequest(service=name), NONE)).status
        return status

    def watch(self, name: str) -> tuple[list[int], asyncio.Task[None]]:
        reported: list[int] = []

        async def read() -> None:
            async for answer in self.service.watch(health_pb2.HealthCheckRequest(service=name), NONE):
                reported.append(answer.status)

        return reported, asyncio.get_running_loop().create_task(read())


async def test_health_of_the_daemon_and_its_services_is_serving() -> None:
    world = World()
    world.add("m", ready=False).problem = NotReady("it is no model")
    assert [await world.check(name) for name in ("", "edged.v1.Cameras")] == [Status.SERVING] * 2
    assert await world.check("m") == Status.NOT_SERVING
    with pytest.raises(NotFound, match="'nobody'"):
        await world.check("nobody")


async def test_health_of_a_service_is_not_hidden_by_a_model_with_its_name() -> None:
    world = World()
    world.add("edged.v1.Cameras", ready=False)
    assert await world.check("edged.v1.Cameras") == Status.SERVING


async def test_health_watch_reports_each_change_once() -> None:
    world = World()
    reported, watching = world.watch("m")
    await settle()
    assert reported == [Status.SERVICE_UNKNOWN]
    world.add("m", ready=False)
    world.add("other", ready=True)
    for _ in range(3):
        world.service.look()
        await settle()
    assert reported[1:] == [Status.NOT_SERVING]
    serve(world.models["m"], "key")
    world.service.look()
    await settle()
    assert reported[2:] == [Status.SERVING]
    del world.models["m"]
    world.service.look()
    await settle()
    assert reported[3:] == [Status.SERVICE_UNKNOWN]
    watching.cancel()


async def test_health_watch_ends_when_the_daemon_stops() -> None:
    world = World()
    world.add("m", ready=True)
    watchers = [world.watch(name) for name in ("", "m", "nobody")]
    await settle()
    world.service.stop()
    await asyncio.wait_for(asyncio.gather(*(task for _, task in watchers)), 5)
    assert [reported[-1] for reported, _ in watchers] == [
        Status.NOT_SERVING,
        Status.NOT_SERVING,
        Status.SERVICE_UNKNOWN,
    ]
    assert await world.check("") == Status.NOT_SERVING


async def test_check_pipeline_with_a_loading_model_is_not_serving() -> None:
    world = World()
    world.add("cars", ready=True)
    world.add("reader", ready=False)
    world.pipelines.reconfigure({"plates": Pipeline(detect="cars", then="reader")})
    assert await world.check("plates") == Status.NOT_SERVING
