"""Opens a built engine: everything that a session needs and does not own, and its end."""

from __future__ import annotations

import traceback

from edged.backends.contract import Nodes, Order
from edged.backends.cuda.contract import Device
from edged.backends.trt import load
from edged.backends.trt.api import Trt
from edged.backends.trt.session import TensorRtSession


class OpenedSession(TensorRtSession):
    """A session with the device that it is on, and what the runtime wants to live as long as its engine."""

    def __init__(self, loaded: load.Loaded, order: Order, device: Device) -> None:
        self._opened = loaded.owners
        self._owned: Device | None = None  # the caller's until all has gone well
        super().__init__(loaded.engine, order.signature, device, loaded.log.reason)
        self._owned = device

    def nodes(self) -> Nodes:
        """TensorRT runs an engine wholly or not at all; what a build for DLA left to the GPU its record says."""
        return {"TensorRT": {}}

    def close(self) -> None:
        with self._device.current():
            super().close()
            self._opened = ()
        if self._owned is not None:
            self._owned.close()


def open_engine(trt: Trt, kind: str, version: str, order: Order) -> OpenedSession:
    """As `Backend.open`, for a runtime of this kind and version."""
    data = load.read(order, kind, version)
    device = load.open_device(order.recipe.device)
    try:
        with device.current():
            return _open(trt, kind, order, data, device)
    except BaseException:
        device.close()
        raise


def _open(trt: Trt, kind: str, order: Order, data: bytes, device: Device) -> OpenedSession:
    try:
        return OpenedSession(load.deserialise(trt, data, kind, load.dla_core(order)), order, device)
    except BaseException as error:
        # The frames hold engine and runtime, which must not outlive their device.
        for one in (error, error.__cause__):
            traceback.clear_frames(one.__traceback__ if one else None)
        raise
