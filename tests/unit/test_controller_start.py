"""The start of the controller, during which no engine is built: it ends when the first models are examined."""

from __future__ import annotations

import asyncio

from edged.engines.controller import Start
from edged.engines.plan import PlannedModel
from tests.unit.control_room import planned_model

BEGAN = 1000.0
LONGEST = 120.0


def being_read() -> PlannedModel:
    planned = planned_model()
    planned.reading = asyncio.create_task(asyncio.sleep(3600))
    return planned


async def test_start_without_models_continues() -> None:
    assert Start(BEGAN).is_going_on([], BEGAN)


async def test_start_continues_until_the_last_model_is_examined() -> None:
    start, last = Start(BEGAN), being_read()
    assert start.is_going_on([planned_model("examined"), last], BEGAN + 1)
    assert last.reading is not None
    last.reading.cancel()
    await asyncio.wait({last.reading})
    assert not start.is_going_on([planned_model("examined"), last], BEGAN + 2)


async def test_start_that_ended_does_not_begin_again_for_later_models() -> None:
    start = Start(BEGAN)
    assert not start.is_going_on([planned_model()], BEGAN + 1)
    assert not start.is_going_on([planned_model(), being_read()], BEGAN + 2)
    assert not start.is_going_on([], BEGAN + 3)


async def test_start_with_a_model_that_is_never_read_ends_at_the_time_limit() -> None:
    start, changing = Start(BEGAN), being_read()
    assert start.is_going_on([changing], BEGAN + LONGEST - 1)
    assert not start.is_going_on([changing], BEGAN + LONGEST)
    assert not start.is_going_on([changing], BEGAN + LONGEST + 1)
