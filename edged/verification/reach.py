"""How far a runtime goes: the opsets and the IR versions that it takes. Asked of the runtime, never read in a table.

Runs in a child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from edged.backends import one_node
from edged.backends.contract import Backend
from edged.errors import EngineUnusable

_OPSET, _IR = 13, 7  # with which the other is looked for: every runtime that is supported takes them
# Beyond it nothing is asked: no version has come near, and a runtime may count up to what it is given.
MOST = 1024


class Reach(msgspec.Struct, frozen=True):
    """Of a runtime of that version: ONNX's opsets from `oldest` to `newest` and IR versions up to `newest_ir`; 0 where
    it takes whatever is written there."""

    version: str
    oldest: int
    newest: int
    newest_ir: int


def find(backend: Backend) -> Reach:
    """Some dozens of models of one node are opened for it, which takes some tens of milliseconds."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.relu(number, _IR))

    def ir_version(number: int) -> bool:
        return takes(backend, one_node.relu(_OPSET, number))

    return Reach(backend.version(), _lowest(opset), _highest(opset, _OPSET), _highest(ir_version, _IR))


def takes_anything(backend: Backend) -> bool:
    """Whether it takes the model of one node with which everything else is found."""
    return takes(backend, one_node.relu(_OPSET, _IR))


def newest_of(backend: Backend, domain: str) -> int:
    """The newest opset of another domain that it takes; 0 where it takes whatever is written there."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.importing(one_node.relu(_OPSET, _IR), domain, number))

    return _highest(opset, 1)


def takes(backend: Backend, model: bytes) -> bool:
    """Whether a runtime opens a tiny model: a file in memory, of which a child that is killed leaves nothing behind."""
    with os.fdopen(os.memfd_create("model.onnx", os.MFD_CLOEXEC), "wb") as file:
        file.write(model)
        file.flush()
        try:
            backend.check(Path(f"/proc/self/fd/{file.fileno()}"))
        except EngineUnusable:
            return False
    return True


def _highest(accepts: Callable[[int], bool], known: int) -> int:
    """The last number that is accepted, where what comes before it is as well; 0 where `MOST` is."""
    if accepts(MOST):
        return 0
    low, high = known, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _lowest(accepts: Callable[[int], bool]) -> int:
    number = _OPSET
    while number > 1 and accepts(number - 1):
        number -= 1
    return number
