"""What happens to engines, in plain words. Pure."""

from __future__ import annotations

from typing import NamedTuple

from edged.api_types import EngineInfo
from edged.demo.life import Life, cosine, is_reference, title

_OUTCOMES = ("ready", "serving", "rejected", "failed")


class Line(NamedTuple):
    """Something that happened, and how many seconds after the launch."""

    at_s: float
    text: str


class Story:
    """Tells each thing of one life once. Engines of the life before are known already, but for taking over."""

    def __init__(self, life: Life, before: Life | None = None) -> None:
        self._life, self._before = life, before
        self._answering: set[str] = set()
        self._told: set[str] = set()  # how it was made
        self._decided = {engine.key for engine in before.engines if _is_decided(engine)} if before else set()

    def tell(self, now: float) -> list[Line]:
        """What is new since the last time, in the order it happened."""
        lines = []
        for engine in self._life.engines:
            if engine.key not in self._decided and _is_decided(engine):
                self._decided.add(engine.key)
                if is_reference(engine) or engine.key not in self._life.first_by:  # else its taking over tells it
                    self._told.add(engine.key)
                    lines.append(Line(now, outcome(engine)))
        for key, at in self._life.first_by.items():
            if key not in self._answering and self._life.engine(key) is not None:
                self._answering.add(key)
                lines.append(Line(at, answering(self._life, key, self._before, brief=key in self._told)))
        return sorted(lines)


def outcome(engine: EngineInfo) -> str:
    """How making an engine ended."""
    if engine.state in ("failed", "rejected"):
        return f"{title(engine)} {engine.state}: {engine.reason}"
    return (
        f"{title(engine)} measured" if is_reference(engine) else f"{title(engine)} {_making(engine)}: {_speed(engine)}"
    )


def answering(life: Life, key: str, before: Life | None = None, *, brief: bool = False) -> str:
    """How an engine came to answer for the first time in a life; `brief` where it is known how it was made."""
    engine, keys = life.engine(key), list(life.first_by)
    if engine is None:
        return f"answered by engine {key[:12]}, which is gone"
    if keys[0] != key:
        made = "" if brief else f"{_making(engine)} and "
        return f"{title(engine)} {made}swapped in: {_speed(engine)}"
    if before is not None:
        stored = any(e.key == key and e.created_unix_s > 0 for e in before.engines)
        return f"first answer, by {title(engine)} {'from the store' if stored else 'and not from the store'}"
    return f"first answer, by {title(engine)}{'; nothing is built yet' if is_reference(engine) else ''}"


def _is_decided(engine: EngineInfo) -> bool:
    """A reference serves before anything is known about it."""
    return engine.state in _OUTCOMES and (engine.state != "serving" or engine.latency_ms is not None)


def _making(engine: EngineInfo) -> str:
    agreement = cosine(engine)
    built = "" if engine.build_s is None else f"built in {engine.build_s:.1f} s, "
    return f"{built}verified" + ("" if agreement is None else f" (cosine {agreement:.4f})")


def _speed(engine: EngineInfo) -> str:
    """Against the reference, timed in turns with it: the box is busy, and milliseconds would say so."""
    return "not timed" if engine.speed is None else f"{engine.speed:.1f} times as fast as unoptimised"
