"""Waits until a model serves on a box."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from edged.errors import EdgedError, Forbidden, Refused, Unauthenticated

if TYPE_CHECKING:
    from edged.api_types import EngineInfo
    from edged.client.client import Client

_WAIT_S, _IDLE_S, _POLL_S = 7200.0, 8.0, 1.0
_ENDED = ("ready", "serving", "failed", "rejected", "unsuitable", "quarantined", "evicted", "stale")


class Served(msgspec.Struct, frozen=True):
    """A model that serves on a box, and its engine. `speed` is a multiple of the reference's speed. If no model was
    added, `model` is empty."""

    model: str = ""
    backend: str = ""
    precision: str = ""
    latency_ms: float | None = None
    speed: float | None = None


def wait_until_served(client: Client, name: str) -> Served:
    """Wait at most two hours until an engine of a model serves and no other engine of the model is being built.

    While the daemon builds an engine of any model, absent engines of this model also prolong the wait, because the
    daemon may build them next. Raises Refused if no engine of the model serves when the wait ends.
    """
    end = time.monotonic() + _WAIT_S
    settled = time.monotonic()  # the last time when an engine was under way
    serving: EngineInfo | None = None
    while time.monotonic() < end:
        try:
            engines: list[EngineInfo] = list(client.engines(name))
            is_queued = any(each.state == "absent" for each in engines) and bool(client.status().building)
        except (Unauthenticated, Forbidden):
            raise
        except EdgedError:  # the daemon has not looked at the folder yet, or is restarted
            engines, is_queued = [], False
        if not engines or is_queued or any(_is_under_way(each) for each in engines):
            settled = time.monotonic()
        is_over = all(each.state in _ENDED for each in engines) or time.monotonic() - settled > _IDLE_S
        serving = next((each for each in engines if each.state == "serving"), None)
        if serving is not None and is_over:
            break
        if engines and is_over and not any(each.state in ("serving", "ready") for each in engines):
            raise Refused(f"no engine of model {name} serves; see: edged engines why {name}")
        time.sleep(_POLL_S)
    if serving is None:
        raise Refused(
            f"no verified engine of model {name} serves after {_WAIT_S / 60:g} minutes; see: edged engines list"
        )
    return Served(name, serving.backend, serving.precision, serving.latency_ms, serving.speed)


def _is_under_way(engine: EngineInfo) -> bool:
    return engine.is_built_elsewhere if engine.state == "absent" else engine.state not in _ENDED
