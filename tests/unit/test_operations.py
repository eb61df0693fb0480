"""The service `Operations`: what its handlers do if they are interrupted."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edged.api.grpc.operations import OperationsService
from edged.errors import OutOfSpace
from edged.proto import operations_pb2 as pb

REQUEST = pb.RemoveModelRequest(name="doors", delete=True)


class Removal:
    """A service with a model whose removal waits until `may_end` is set. `done` has the steps that were taken."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.begun, self.may_end, self._problem = threading.Event(), threading.Event(), problem
        self.done: list[str] = []
        controller = SimpleNamespace(
            commands=None,
            is_configured=lambda name: False,
            removed=self._removed,
            repository=SimpleNamespace(remove=self._remove),
            galleries=SimpleNamespace(forget=self._forget_faces),
            frames=SimpleNamespace(forget=self._forget_frames),
        )
        unused: Any = None
        self.service = OperationsService(cast(Any, controller), unused, unused, unused)

    def _remove(self, name: str, *, delete: bool) -> None:
        self.begun.set()
        assert self.may_end.wait(20)
        self.done.append(name)

    async def _removed(self, name: str) -> None:
        self.done.append("plan")

    async def _forget_faces(self, name: str) -> None:
        self.done.append("faces")
        if self._problem is not None:
            raise self._problem

    async def _forget_frames(self, name: str) -> None:
        self.done.append("frames")


async def test_remove_model_deletes_faces_and_frames_although_the_client_has_gone() -> None:
    world = Removal()
    call = asyncio.ensure_future(world.service.remove_model(REQUEST, cast(Any, None)))
    await asyncio.to_thread(world.begun.wait, 20)
    call.cancel()
    world.may_end.set()
    await asyncio.wait((call,))
    assert call.cancelled()
    assert world.done == ["doors", "plan", "faces", "frames"]


async def test_remove_model_deletes_frames_although_the_faces_cannot_be_deleted() -> None:
    world = Removal(OutOfSpace("the disk is full"))
    world.may_end.set()
    with pytest.raises(OutOfSpace):
        await world.service.remove_model(REQUEST, cast(Any, None))
    assert world.done == ["doors", "plan", "faces", "frames"]
