"""One run of the daemon as seen by clients: its engines, and when each engine first answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edged.api_types import EngineInfo, ModelInfo

UNDER_WAY = ("absent", "queued", "building", "verifying")
_SERVING = "serving"
_GAIN = 0.95  # the daemon swaps if a candidate costs less than this share of the serving engine (engines/reconcile.py)
_OPENING_S = 60.0  # within this time after the last build, the daemon opens a faster engine, if it has built one


class Life:
    """One run of the daemon, from launch to stop. Times are seconds since the launch."""

    def __init__(self) -> None:
        self.first_by: dict[str, float] = {}  # the time of each engine's first answer, by key, the earliest first
        self.engines: tuple[EngineInfo, ...] = ()
        self.model: ModelInfo | None = None
        self.streamed_s = 0.0
        self.problem = ""  # why the run ended early
        self._quiet_since: float | None = None

    @property
    def first_answer_s(self) -> float | None:
        return next(iter(self.first_by.values()), None)

    @property
    def serving(self) -> EngineInfo | None:
        """The engine that served at the last report."""
        return next((engine for engine in self.engines if engine.state == _SERVING), None)

    @property
    def served_s(self) -> float | None:
        """The time of the serving engine's first answer; None before it."""
        return self.first_by.get(self.serving.key) if self.serving else None

    @property
    def swaps(self) -> int:
        return self.model.swaps if self.model else 0

    def engine(self, key: str) -> EngineInfo | None:
        return next((engine for engine in self.engines if engine.key == key), None)

    def answer(self, key: str, now: float) -> None:
        """Record that the engine with this key answered at `now`."""
        self.first_by.setdefault(key, now)

    def look(self, model: ModelInfo | None, engines: Iterable[EngineInfo], now: float) -> None:
        """Record what the daemon reports now about the model and its engines."""
        self.model, self.engines = model, tuple(engines)
        if not self.engines or any(engine.state in UNDER_WAY for engine in self.engines):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now

    def is_settled(self, now: float) -> bool:
        """Whether all builds have ended, and the fastest engine serves and has answered. The daemon opens a faster
        engine within a minute after the last build. Therefore, after this minute, the serving engine counts as the
        fastest."""
        if self._quiet_since is None or self.served_s is None or self.serving is None:
            return False
        serving = self.serving
        rivals = [e.speed for e in self.engines if e.state == "ready" and e.precision == serving.precision]
        fastest = serving.speed is not None and all(serving.speed >= (rival or 0.0) * _GAIN for rival in rivals)
        return fastest or now - self._quiet_since > _OPENING_S


def title(engine: EngineInfo) -> str:
    """Return a short name of an engine: its backend, its precision unless that is fp32, its device unless that is the
    CPU, and `unoptimised` for the reference."""
    words = [engine.backend]
    words += [engine.precision] if engine.precision not in ("", "fp32") else []
    words += [engine.device] if engine.device not in ("", "cpu") else []
    words += ["unoptimised"] if engine.is_reference else []
    return " ".join(words)


def cosine(engine: EngineInfo) -> float | None:
    """Return the cosine similarity, -1..1, of an engine's answers to the reference's; None without verification."""
    return engine.verdict.figures.get("cosine") if engine.verdict else None


def is_cache_hit(before: Life, after: Life) -> bool:
    """Whether the engine that serves after the restart is from the store, and no stored engine was built again."""
    stored = {engine.key: engine.created_unix_s for engine in before.engines if engine.created_unix_s > 0}
    found = {engine.key: engine.created_unix_s for engine in after.engines}
    serving = after.serving
    return serving is not None and serving.key in stored and all(found.get(key) == at for key, at in stored.items())


_OUTCOMES = ("ready", "serving", "rejected", "failed")


class Line(NamedTuple):
    """An event and its time in seconds since the launch."""

    at_s: float
    text: str


class Story:
    """Reports each event of one run of the daemon once. For engines that an earlier run built, it reports only their
    first answer."""

    def __init__(self, life: Life, before: Life | None = None) -> None:
        self._life, self._before = life, before
        self._answering: set[str] = set()
        self._reported: set[str] = set()  # engines whose build was reported
        self._decided = {engine.key for engine in before.engines if _is_decided(engine)} if before else set()

    def new_lines(self, now: float) -> list[Line]:
        """Return the events since the last call, in the order of their times."""
        lines = []
        for engine in self._life.engines:
            if engine.key not in self._decided and _is_decided(engine):
                self._decided.add(engine.key)
                # Otherwise the line about the swap reports the outcome.
                if engine.is_reference or engine.key not in self._life.first_by:
                    self._reported.add(engine.key)
                    lines.append(Line(now, outcome(engine)))
        for key, at in self._life.first_by.items():
            if key not in self._answering and self._life.engine(key) is not None:
                self._answering.add(key)
                lines.append(Line(at, answering(self._life, key, self._before, brief=key in self._reported)))
        return sorted(lines)


def outcome(engine: EngineInfo) -> str:
    """Describe how building an engine ended."""
    if engine.state in ("failed", "rejected"):
        return f"{title(engine)} {engine.state}: {engine.reason}"
    how = "measured" if engine.is_reference else f"{_making(engine)}: {_speed(engine)}"
    return f"{title(engine)} {how}"


def answering(life: Life, key: str, before: Life | None = None, *, brief: bool = False) -> str:
    """Describe the first answer of an engine in a run. With `brief`, leave out how the engine was built."""
    engine, keys = life.engine(key), list(life.first_by)
    if engine is None:
        return f"answered by engine {key[:12]}, which no longer exists"
    if keys[0] != key:
        made = "" if brief else f"{_making(engine)} and "
        return f"{title(engine)} {made}swapped in: {_speed(engine)}"
    if before is not None:
        stored = any(e.key == key and e.created_unix_s > 0 for e in before.engines)
        return f"first answer, by {title(engine)} {'from the store' if stored else '(not from the store)'}"
    return f"first answer, by {title(engine)}{'; nothing is built yet' if engine.is_reference else ''}"


def _is_decided(engine: EngineInfo) -> bool:
    """Whether the engine was built and measured, or failed, or was rejected. The reference serves before it is
    measured, so an engine that serves without a measurement is not decided."""
    return engine.state in _OUTCOMES and (engine.state != "serving" or engine.latency_ms is not None)


def _making(engine: EngineInfo) -> str:
    agreement = cosine(engine)
    built = "" if engine.build_s is None else f"built in {engine.build_s:.1f} s, "
    return f"{built}verified" + ("" if agreement is None else f" (cosine {agreement:.4f})")


def _speed(engine: EngineInfo) -> str:
    """Describe the speed as a multiple of the reference's, since milliseconds would depend on the box's load."""
    return "not timed" if engine.speed is None else f"{engine.speed:.1f} times as fast as unoptimised"
