"""Opens a built engine: everything that a session needs and does not own, and its end."""

from __future__ import annotations

from typing import cast

from edged.backend.contract import Order
from edged.backend.cuda.contract import Device
from edged.backend.trt import load
from edged.backend.trt.api import Trt
from edged.backend.trt.session import TensorRtSession
from edged.backend.trt.tensors import Engine


class OpenedSession(TensorRtSession):
    """A session with the device that it is on, and what the runtime wants to live as long as its engine."""

    def __init__(self, loaded: load.Loaded, order: Order, device: Device) -> None:
        self._owned, self._opened = device, loaded.owners
        super().__init__(cast(Engine, loaded.engine), order.signature, device, loaded.log.reason)

    def close(self) -> None:
        super().close()
        self._opened = ()
        self._owned.close()


def open_engine(trt: Trt, kind: str, version: str, order: Order) -> OpenedSession:
    """As `Backend.open`, for a runtime of this kind and version."""
    data = load.read(order, kind, version)
    device = load.open_device(order.recipe.device)
    try:
        with device.current():
            loaded = load.deserialise(trt, data, kind, load.dla_core(order))
    except BaseException:
        device.close()
        raise
    return OpenedSession(loaded, order, device)
