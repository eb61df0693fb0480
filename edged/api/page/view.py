"""Converts reports to the contents of the page, as types for JSON. The command line shows the same reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from edged import formatting
from edged.api_types import (
    AlarmInfo,
    CameraInfo,
    DeviceLoad,
    EngineInfo,
    EngineProgress,
    LineInfo,
    ModelInfo,
    PipelineInfo,
    StatusInfo,
    ZoneInfo,
)
from edged.event_text import sentence
from edged.events import EngineMoved, Event
from edged.events import EngineProgress as ProgressMade

Level: TypeAlias = Literal["good", "busy", "bad"]

_GONE = ("lost", "failed")
_DONE = ("ready", "serving")
_MOST_REPORTS = 20  # limit of links to reports in the row of a model
_LOADED = 0.25  # a timing counts as made under load if other processes use this share of the processors


class Summary(msgspec.Struct, frozen=True):
    """One sentence about the box."""

    level: Level
    text: str
    version: str
    up: str


class CameraCard(msgspec.Struct, frozen=True):
    """A camera. `pictures`: the page can show pictures of the camera. `removable`: the page can change and remove the
    camera. `age_ms` is the median time from capture to answer of the latest frames. `settings` are the camera's
    settings by key, without passwords."""

    name: str
    model: str
    state: str
    reason: str
    enabled: bool
    pictures: bool
    removable: bool
    source: str
    width: int
    height: int
    fps: float
    fps_in: float
    age_ms: float | None
    skipped: str
    reconnections: int
    zones: dict[str, ZoneInfo]
    lines: dict[str, LineInfo]
    sinks: dict[str, str]
    settings: dict[str, str]


class Build(msgspec.Struct, frozen=True):
    """An engine that is being made. `percent` is None if unknown."""

    what: str
    percent: int | None
    progress: str


class ReportLink(msgspec.Struct, frozen=True):
    """A link to the report on an engine. `key` is the engine's key, `what` names its backend and precision."""

    key: str
    what: str


class ModelRow(msgspec.Struct, frozen=True):
    """A model. `serves` names the engine that answers, or the models of an ensemble. `speed` is the engine's speed as a
    multiple of unoptimised ONNX Runtime's, None if not measured. `loaded`: other work kept the box busy while the speed
    was measured. `stale` are the engines that the model should have, but that are missing or not usable, each with the
    reason. `reports` are the engines that were compared with the reference."""

    name: str
    state: str
    reason: str
    family: str
    serves: str
    speed: float | None
    loaded: bool
    building: tuple[Build, ...]
    stale: tuple[str, ...]
    removable: bool
    reports: tuple[ReportLink, ...] = ()


class AlarmRow(msgspec.Struct, frozen=True):
    """An alarm. `about` names the camera or model of the alarm, if any."""

    kind: str
    about: str
    message: str
    since_unix_s: float


class LogLine(msgspec.Struct, frozen=True):
    """A line of the page's log, which describes one event."""

    number: int
    unix_s: float
    text: str


class Device(msgspec.Struct, frozen=True):
    """The box in one line, and values for the chart: `cpu` is the share of the processors in use, 0 to 1; `memory_mb`
    is the used memory."""

    line: str
    cpu: float
    memory_mb: int


def summary(status: StatusInfo, models: Sequence[ModelInfo], cameras: Sequence[CameraInfo]) -> Summary:
    """Describe the box in one sentence."""
    level, text = _sentence(status, models, cameras)
    return Summary(level, text, status.version, formatting.span(status.uptime_s))


def _sentence(status: StatusInfo, models: Sequence[ModelInfo], cameras: Sequence[CameraInfo]) -> tuple[Level, str]:
    gone = [each.camera for each in cameras if each.state in _GONE]
    refused = [each.name for each in models if each.state in ("refused", "failed")]
    others = sum(not {raised.camera, raised.model} & {*gone, *refused} for raised in status.alarms)
    wrong = []
    if gone:
        wrong.append(f"{_named('camera', gone)} {'gives' if len(gone) == 1 else 'give'} no frames")
    if refused:
        wrong.append(f"{_named('model', refused)} cannot be served")
    if others:
        wrong.append(f"{_count(others, 'alarm')} {'needs' if others == 1 else 'need'} attention")
    if wrong:
        text = "; ".join(wrong)
        return "bad", f"{text[0].upper()}{text[1:]}."
    if not models:
        return "busy", "This box has no model yet. Drop an ONNX file here, or run: edged models add NAME FILE"
    loading = [each.name for each in models if each.state == "loading"]
    if loading:
        return "busy", f"{_named('Model', loading)} {'is' if len(loading) == 1 else 'are'} loading."
    running = sum(each.state == "streaming" or (not each.configured and each.connections > 0) for each in cameras)
    works = f"Everything works: {_count(running, 'camera')} and {_count(status.serving, 'model')}."
    if status.building:
        count = len(status.building)
        return "busy", f"{works} {_count(count, 'engine')} {'is' if count == 1 else 'are'} being built meanwhile."
    return "good", works


def _count(count: int, what: str) -> str:
    return formatting.many(count, what.lower())


def _named(what: str, names: Sequence[str]) -> str:
    """Return a name or a number, such as `camera hall` or `3 cameras`."""
    return f"{what} {names[0]}" if len(names) == 1 else _count(len(names), what)


def card(info: CameraInfo) -> CameraCard:
    """Describe a camera."""
    is_on = info.state not in ("", "off")
    return CameraCard(
        name=info.camera,
        model=info.model,
        state=info.state or ("sending" if info.connections else "silent"),
        reason=info.reason or info.last_error,
        enabled=is_on or not info.configured,
        pictures=info.configured and is_on,
        removable=info.removable,
        source=info.source,
        width=info.width,
        height=info.height,
        fps=round(info.fps_answered, 1),
        fps_in=round(info.fps_in, 1),
        age_ms=None if info.age_p50_ms is None else round(info.age_p50_ms, 1),
        skipped=formatting.skipped(info.skipped, info.received),
        reconnections=info.reconnections,
        zones=info.zones,
        lines=info.lines,
        sinks=info.sinks,
        settings=info.settings,
    )


def rows(
    models: Iterable[ModelInfo],
    engines: Iterable[EngineInfo],
    building: Iterable[EngineProgress],
    titles: Mapping[str, str],
    configured: frozenset[str],
) -> list[ModelRow]:
    """Describe the models. `titles` are the backends' display names; `configured` models are in the configuration."""
    by_model: dict[str, list[EngineInfo]] = {}
    for engine in engines:
        by_model.setdefault(engine.model, []).append(engine)
    making: dict[str, list[EngineProgress]] = {}
    for each in building:
        making.setdefault(each.model, []).append(each)
    return [
        _row(model, by_model.get(model.name, []), making.get(model.name, []), titles, model.name in configured)
        for model in models
    ]


def _row(
    model: ModelInfo,
    engines: Sequence[EngineInfo],
    making: Sequence[EngineProgress],
    titles: Mapping[str, str],
    is_configured: bool,
) -> ModelRow:
    serving = next((engine for engine in engines if engine.key == model.engine), None)
    made = {each.key for each in making}
    return ModelRow(
        name=model.name,
        state=model.state,
        reason=model.reason,
        family=model.family,
        serves=_serves(model, titles),
        speed=None if serving is None or serving.speed is None else round(serving.speed, 2),
        loaded=serving is not None and (serving.load or 0.0) >= _LOADED,
        building=tuple(
            Build(
                f"{_title(titles, each.backend)} {each.precision}",
                None if each.fraction is None else round(100 * each.fraction),
                formatting.far(each.phase or each.state, each.fraction, each.elapsed_s, each.estimate_s),
            )
            for each in making
        ),
        stale=tuple(
            f"{_title(titles, engine.backend)} {engine.precision} is {engine.state}: {engine.reason}"
            for engine in engines
            if engine.reason and engine.key not in made and engine.state not in _DONE
        ),
        removable=not is_configured,
        reports=tuple(
            ReportLink(engine.key, f"{_title(titles, engine.backend)} {engine.precision}")
            for engine in engines
            if engine.verdict is not None and not engine.is_reference
        )[:_MOST_REPORTS],
    )


def _serves(model: ModelInfo, titles: Mapping[str, str]) -> str:
    if model.parts:
        return f"its models: {', '.join(model.parts)}"
    return f"{_title(titles, model.backend)} {model.precision}".strip() if model.backend else ""


def pipeline_row(info: PipelineInfo) -> ModelRow:
    """Describe a pipeline, which is listed with the models."""
    what = info.reason or f"{info.detect} detects, {info.then} gets the crops"
    return ModelRow(info.name, info.state, what, "pipeline", "", None, False, (), (), removable=False)


def _title(titles: Mapping[str, str], backend: str) -> str:
    return titles.get(backend, backend)


def alarm(info: AlarmInfo) -> AlarmRow:
    """Describe an alarm."""
    about = f"camera {info.camera}" if info.camera else f"model {info.model}" if info.model else ""
    return AlarmRow(info.kind.replace("_", " "), about, info.message, info.since_unix_s)


def device(load: DeviceLoad, facts: Mapping[str, str], free_bytes: int) -> Device:
    """Describe the box."""
    name = facts.get("jetson.model") or facts.get("gpu.0.name") or facts.get("cpu.model") or facts.get("cpu.arch", "")
    used = load.memory_bytes - load.memory_free_bytes
    parts = [name, f"processors {load.cpu_busy:.0%} busy"]
    if load.memory_bytes:
        parts.append(f"{formatting.size(load.memory_free_bytes)} of {formatting.size(load.memory_bytes)} memory free")
    if load.temperatures:
        parts.append(f"{max(load.temperatures.values()):.0f} °C")
    parts += [load.power_mode, f"{formatting.size(free_bytes)} of disk free"]
    return Device(" · ".join(filter(None, parts)), round(load.cpu_busy, 3), used >> 20)


def log_line(event: Event) -> LogLine | None:
    """Describe an event; return None for progress of builds and for changes of state without a reason."""
    if isinstance(event.what, ProgressMade) or (isinstance(event.what, EngineMoved) and not event.what.reason):
        return None
    return LogLine(event.sequence, event.unix_s, sentence(event.what, event.model, event.engine))
