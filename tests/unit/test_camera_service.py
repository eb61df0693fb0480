"""The Cameras service without a server: errors that end a call, and the memory of refused pictures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace, TracebackType

import pytest

from edged.api.endpoints.publisher import Publisher
from edged.api.grpc import cameras
from edged.api.grpc.cameras import CameraService
from edged.api.grpc.rpc import Context
from edged.api.grpc.wire import FrameRequest
from edged.errors import InvalidInput, NotFound, Overloaded, Refused
from edged.events import EventLog
from edged.proto import cameras_pb2 as pb
from edged.serving import stream as streams
from edged.serving.camera import Cameras
from edged.serving.slot import Slot
from edged.vision.detections import Detections
from tests.fake_link import FakeLink
from tests.waiting import run

_PICTURE = Detections.empty().pack()  # the fake engine echoes it as its detections
CONTEXT = Context("unix:")


class Room:
    """A service with one model `m`, whose fake engine answers while `answering` runs."""

    def __init__(self, answering: object = None, tracking: object = None) -> None:
        self.slot, self.link, self.cameras = Slot("m"), FakeLink(), Cameras()
        self.slot.install(self.link.session())
        planned = SimpleNamespace(model=None, answering=answering)
        pipelines = SimpleNamespace(detector=lambda name: name)
        controller = SimpleNamespace(slot=self._slot, find=lambda name: planned, pipelines=pipelines)
        self.service = CameraService(controller, self.cameras, tracking, Publisher(EventLog()))  # type: ignore[arg-type]

    def _slot(self, name: str) -> Slot:
        if name != "m":
            raise NotFound(f"there is no model {name!r}")
        return self.slot

    async def answering(self) -> None:
        while True:
            while self.link.jobs:
                self.link.answer()
            await asyncio.sleep(0)

    async def detect(self, frames: AsyncIterator[pb.Frame]) -> list[pb.Result]:
        """Run one Detect call and return all results."""
        engine = asyncio.create_task(self.answering())
        encoded = (frame.SerializeToString() async for frame in frames)
        try:
            return [pb.Result.FromString(data) async for data in self.service.detect_bytes(encoded, CONTEXT)]
        finally:
            engine.cancel()


async def sent(*frames: pb.Frame) -> AsyncIterator[pb.Frame]:
    for frame in frames:
        yield frame


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept() -> list[str]:
    """Return the functions of the service whose frames a traceback keeps alive."""
    traces = [each for each in gc.get_objects() if isinstance(each, TracebackType)]
    codes = [trace.tb_frame.f_code for trace in traces]
    return [code.co_name for code in codes if code.co_filename == cameras.__file__]


def test_detect_model_without_pictures_ends_the_call() -> None:
    answering = SimpleNamespace(recognition=SimpleNamespace(preprocess=None, picture="none is 4-D", sound=None))
    room = Room(answering)
    with pytest.raises(InvalidInput):
        run(room.detect(sent(pb.Frame(model="m", encoded=_PICTURE))))
    with pytest.raises(InvalidInput):
        run(room.service.answer(FrameRequest.of(pb.Frame(model="m", encoded=_PICTURE))))
    assert not room.link.jobs


def test_detect_tracking_without_its_library_ends_the_call() -> None:
    room = Room(tracking=SimpleNamespace(missing="it is not installed"))
    frame = pb.Frame(model="m", encoded=_PICTURE, options=pb.StreamOptions(mode=pb.StreamOptions.FRESHEST, track=True))
    with pytest.raises(Refused):
        run(room.detect(sent(frame)))
    assert not room.link.jobs


def test_detect_later_frame_with_tracking_but_no_library_gets_an_error_result() -> None:
    room = Room(tracking=SimpleNamespace(missing="it is not installed"))
    frame = pb.Frame(model="m", encoded=_PICTURE, options=pb.StreamOptions(mode=pb.StreamOptions.FRESHEST, track=True))
    results = run(room.detect(sent(pb.Frame(model="m", encoded=_PICTURE), frame)))
    assert [bool(result.error.message) for result in results] == [False, True]


async def test_detect_one_camera_too_many_ends_the_call_after_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MOST_CAMERAS", 2)
    room = Room()
    with pytest.raises(Overloaded, match="2 cameras"):
        await room.detect(sent(*(pb.Frame(camera=camera, model="m", encoded=_PICTURE) for camera in "abc")))
    assert [(each.camera, each.connections, each.answered) for each in room.cameras.reports()] == [
        ("a", 0, 1),
        ("b", 0, 1),
    ]


async def test_detect_unknown_model_ends_the_call_or_is_the_result_of_a_later_frame() -> None:
    with pytest.raises(NotFound):
        await Room().detect(sent(pb.Frame(camera="a", model="x", encoded=_PICTURE)))
    frames = [pb.Frame(camera="a", model=model, sequence=n, encoded=_PICTURE) for n, model in enumerate("mx")]
    first, second = await Room().detect(sent(*frames))
    assert (first.error.message, second.error.message) == ("", "there is no model 'x'")


@pytest.mark.usefixtures("uncollected")
async def test_detect_refused_picture_is_freed_despite_its_error() -> None:
    frames = (pb.Frame(camera="a", model="m", encoded=_PICTURE, rotation=45) for _ in range(3))
    results = await Room().detect(sent(*frames))
    assert ["rotation" in result.error.message for result in results] == [True] * 3
    assert kept() == []


@pytest.mark.usefixtures("uncollected")
async def test_detect_one_refused_picture_is_freed_despite_its_error() -> None:
    room = Room()
    frame = pb.Frame(camera="a", model="m", encoded=_PICTURE)
    asyncio.get_running_loop().call_soon(lambda: room.link.fail(InvalidInput("no picture")))
    with contextlib.suppress(InvalidInput):
        await room.service.answer(FrameRequest.of(frame))
        raise AssertionError("it was answered")
    await asyncio.sleep(0)
    assert kept() == []
