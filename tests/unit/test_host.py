"""A session's threads in a host: whatever fails while it opens or closes, the daemon is told and nothing stays open."""

from __future__ import annotations

import errno
import os
import queue
from typing import Any

import pytest

from edged.backends.contract import Nodes, Order, Recipe, Signature
from edged.errors import EngineUnusable
from edged.host import main as host
from edged.ipc import messages as m
from edged.tensors import TensorSpec
from edged.vision.family import recognise

_SIGNATURE = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))


class Session:
    """A session that a test lets fail. `closed` counts."""

    def __init__(self, wrong: str) -> None:
        self.wrong, self.closed = wrong, 0

    def nodes(self) -> Nodes:
        if self.wrong == "disk":
            raise EngineUnusable("INVALID_PROTOBUF") from OSError(errno.EIO, os.strerror(errno.EIO))
        if self.wrong == "nodes":
            raise RuntimeError("no such tensor \udcff")
        return {}

    def infer(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1
        if self.wrong == "close":
            raise RuntimeError("the driver is gone")


class Backend:
    def __init__(self, session: Session) -> None:
        self.session = session

    def open(self, order: Order) -> Session:
        return self.session


def opened(session: Session) -> tuple[Any, queue.SimpleQueue[m.FromHost]]:
    said: queue.SimpleQueue[m.FromHost] = queue.SimpleQueue()
    order = Order("/nowhere", _SIGNATURE, Recipe("null"))
    recognition = recognise(_SIGNATURE.inputs, _SIGNATURE.outputs, {}, {})
    backend: Any = Backend(session)
    shared: Any = None
    return host._SessionThreads(m.Open(1, order, recognition), backend, shared, said.put), said


def test_session_whose_nodes_cannot_be_read_is_closed_and_reported() -> None:
    session = Session("nodes")
    threads, said = opened(session)
    answer = said.get(timeout=20)
    assert isinstance(answer, m.OpenFailed)
    answer.message.encode()
    assert session.closed == 1
    assert threads.is_over


def test_open_model_on_a_disk_that_fails_is_reported_as_the_disks() -> None:
    _, said = opened(Session("disk"))
    answer = said.get(timeout=20)
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == "DiskFailing"


@pytest.mark.parametrize("wrong", ["", "close"])
def test_closing_is_reported_even_if_the_runtime_fails_at_it(wrong: str) -> None:
    session = Session(wrong)
    threads, said = opened(session)
    assert isinstance(said.get(timeout=20), m.Opened)
    threads.submit(None)
    assert isinstance(said.get(timeout=20), m.Closed)
    assert session.closed == 1
