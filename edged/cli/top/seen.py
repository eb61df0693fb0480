"""What is known of a box: its last word, how fast that changed, and since when it is silent. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from edged.api_types import LoadInfo


class Seen(msgspec.Struct, frozen=True):
    """One box. `rates` are requests and frames a second by model, of the time between the last two words; a model is
    not among them where that is not known. `heard` is when it last answered and `tried` when it was last asked, both in
    seconds since the epoch, 0 for never; `looks` counts its words, and `error` is why the last one is not of now, empty
    where it is."""

    name: str
    load: LoadInfo | None = None
    rates: dict[str, float] = {}
    heard: float = 0.0
    tried: float = 0.0
    looks: int = 0
    error: str = ""

    def answered(self, load: LoadInfo, now: float) -> Seen:
        """It spoke."""
        return Seen(self.name, load, rates(self.load, load), now, now, self.looks + 1)

    def failed(self, error: str, now: float) -> Seen:
        """It did not."""
        return msgspec.structs.replace(self, error=error, tried=now)

    def json(self) -> dict[str, Any] | None:
        """Plain values; None before the first word."""
        if self.load is None:
            return None
        return self.load.json() | {"requests_per_second": self.rates}


def rates(before: LoadInfo | None, after: LoadInfo) -> dict[str, float]:
    """Requests and frames a second by model. Of another run of the daemon nothing is told, nor of a model that was
    loaded anew in between, whose counts began again."""
    if before is None or before.status.epoch != after.status.epoch or after.mono_s <= before.mono_s:
        return {}
    seconds = after.mono_s - before.mono_s
    earlier = {model.name: model.answered + model.failed for model in before.models}
    counted = {model.name: model.answered + model.failed - earlier.get(model.name, 0) for model in after.models}
    return {name: count / seconds for name, count in counted.items() if name in earlier and count >= 0}
