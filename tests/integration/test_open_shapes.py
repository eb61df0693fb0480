"""Requests with shapes that the serving engine was not built for: refused, answered by the fallback, or learnt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest

from edged.api_types import InputShapes, ShapeRange, Shapes
from edged.errors import InvalidInput
from tests import models
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import Calls, request
from tests.integration.shape_world import until, with_default, world, zero

RANGE = "1x4 1x8 2x8"
AS_TEXT = "x=1x4:1x8:2x8"


async def test_request_outside_the_engines_shapes_is_answered_by_the_fallback(tmp_path: Path) -> None:
    async with world(tmp_path, zero("x"), backends="null", profile__x=RANGE) as each:
        await each.serves("null", AS_TEXT)
        engine = each.planned.slot.current
        assert await each.ask(x=(2, 8)) == 0
        assert each.planned.fallback.current is None  # no request needed it so far
        for shape in ((3, 8), (1, 3), (1, 9), (64, 500)):
            assert await each.ask(x=shape) == 0
        session = each.planned.fallback.current
        assert session is not None
        assert (session.engine.backend, str(session.engine.profile)) == ("onnxruntime", "")
        assert each.planned.slot.current is engine
        seen = each.planned.traffic.seen()
        assert (seen.requests, seen.smallest["x"], seen.largest["x"]) == (5, (1, 3), (64, 500))


async def test_infer_request_that_gives_an_input_with_a_default_is_answered_by_the_reference(tmp_path: Path) -> None:
    async with world(tmp_path, with_default(zero("x")), backends="null", profile__x=RANGE) as each:
        await each.serves("null", AS_TEXT)
        assert await each.ask(x=(2, 8)) == 0
        assert each.planned.fallback.current is None
        assert await each.ask(x=(2, 8), offset=5.0) == 5
        assert each.planned.fallback.current is not None
        assert each.planned.fallback.current.engine.backend == "onnxruntime"
        assert await each.ask(x=(2, 8)) == 0
        with pytest.raises(InvalidInput, match="is missing"):
            await each.ask(offset=5.0)


@pytest.mark.long
async def test_shape_policy_refuse_applies_to_every_engine(tmp_path: Path) -> None:
    settings = {"backends": "null", "profile__x": RANGE, "shapes__policy": "refuse"}

    async with world(tmp_path, zero("x"), **settings) as each:
        await until(lambda: each.planned.slot.current is not None, "something serves")
        for _ in range(2):
            assert await each.ask(x=(1, 4)) == 0
            with pytest.raises(InvalidInput, match=r"it must be from \[1, 4\] to \[2, 8\]"):
                await each.ask(x=(3, 8))
            await each.serves("null")


async def test_dimensions_of_one_name_are_equal(tmp_path: Path) -> None:
    async with world(tmp_path, zero("a", "b"), backends="null") as each:
        assert await each.ask(a=(2, 3), b=(2, 3)) == 0
        with pytest.raises(InvalidInput, match=r"input 'b' is \[1, 3\].*'n'.*input 'a'"):
            await each.ask(a=(2, 3), b=(1, 3))


@pytest.mark.long
async def test_shapes_of_requests_are_learnt_without_failures_and_survive_a_restart(tmp_path: Path) -> None:
    settings = {"backends": "null", "shapes__policy": "learn", "shapes__quiet_s": "0.5"}

    async with world(tmp_path, zero("x"), **settings) as each:
        for width in (5, 17, 33):
            assert await each.ask(x=(1, width)) == 0
        await each.serves("null", "x=1x4:1x5:1x40")
        failed: list[BaseException] = []
        stop = asyncio.Event()

        async def pester() -> None:
            while not stop.is_set():
                try:
                    assert await each.ask(x=(3, 100)) == 0
                    assert await each.ask(x=(1, 40)) == 0
                except Exception as error:
                    failed.append(error)
                await asyncio.sleep(0.01)

        pestering = asyncio.create_task(pester())
        try:
            await each.serves("null", "x=1x4:3x100:4x112")
        finally:
            stop.set()
            await pestering
        assert not failed
        assert each.planned.slot.current is not None
        proved = each.planned.slot.current.engine
    async with world(tmp_path, zero("x")) as each:
        await each.serves("null", "x=1x4:3x100:4x112")
        assert each.planned.traffic.seen().largest["x"] == (3, 100)
        assert each.planned.slot.current is not None
        again = each.planned.slot.current.engine
        assert (again.key, again.edition) == (proved.key, proved.edition)  # the engine was not rebuilt


def test_seen_shapes_are_listed_and_refusals_name_the_setting() -> None:
    with Daemon() as daemon, daemon.client() as client, Calls(daemon.tcp) as calls:
        file = models.save(zero("x"), daemon.home / "m.onnx")
        settings = {"backends": "onnxruntime", "profile.x": RANGE, "shapes.policy": "refuse"}
        client.add_model("m", file, settings)
        daemon.ready("m")
        for width in (4, 8, 8):
            calls.infer(request("m", np.zeros((1, width), np.float32)))
        with pytest.raises(grpc.RpcError, match=r"from \[1, 4\] to \[2, 8\]; .*profile.x") as refusal:
            calls.infer(request("m", np.zeros((3, 8), np.float32)))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]  # it is a call
        (model,) = client.models()
        assert model.shapes == Shapes(
            "refuse",
            (
                InputShapes(
                    "x",
                    ("n", "w"),
                    serving=None,
                    wanted=ShapeRange((1, 4), (1, 8), (2, 8)),
                    seen=ShapeRange((1, 4), (1, 8), (1, 8)),
                ),
            ),
            requests=3,
        )


@pytest.mark.long
async def test_learn_ignores_requests_over_the_limit(tmp_path: Path) -> None:
    settings = {"backends": "null", "shapes__policy": "learn", "shapes__quiet_s": "0", "shapes__most_mb": "1"}

    async with world(tmp_path, zero("x"), profile__x=RANGE, **settings) as each:
        await each.serves("null", AS_TEXT)
        assert await each.ask(x=(8, 1 << 17)) == 0  # 4 MiB
        assert await each.ask(x=(2, 16)) == 0
        await each.serves("null", "x=1x4:2x16:2x16")
        assert await each.ask(x=(8, 1 << 17)) == 0
