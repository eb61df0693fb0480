"""The start of the controller: nothing is made while the first models are examined."""

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


async def test_start_without_models_goes_on() -> None:
    assert Start(BEGAN).is_going_on([], BEGAN)


async def test_start_until_the_last_model_is_examined_goes_on() -> None:
    start, last = Start(BEGAN), being_read()
    assert start.is_going_on([planned_model("examined"), last], BEGAN + 1)
    assert last.reading is not None
    last.reading.cancel()
    await asyncio.wait({last.reading})
    assert not start.is_going_on([planned_model("examined"), last], BEGAN + 2)


async def test_start_after_its_end_stays_over_for_later_models() -> None:
    start = Start(BEGAN)
    assert not start.is_going_on([planned_model()], BEGAN + 1)
    assert not start.is_going_on([planned_model(), being_read()], BEGAN + 2)
    assert not start.is_going_on([], BEGAN + 3)


async def test_start_with_a_model_that_is_always_being_read_ends_in_time() -> None:
    start, changing = Start(BEGAN), being_read()
    assert start.is_going_on([changing], BEGAN + LONGEST - 1)
    assert not start.is_going_on([changing], BEGAN + LONGEST)
    assert not start.is_going_on([changing], BEGAN + LONGEST + 1)
