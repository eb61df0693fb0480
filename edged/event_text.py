"""Events as sentences, which the command line and the page show."""

from __future__ import annotations

from edged import events as happened
from edged import formatting


def sentence(what: happened.What | None, model: str, engine: str) -> str:
    """Return an event as a sentence. `model` and `engine` (a key) say what the event is about, if not empty. `what` is
    None for an event that only a newer version of edged knows. Pure."""
    subject = f"engine {engine[:12]}{f' of {model}' if model else ''}"
    about = subject if engine else f"model {model}" if model else ""
    match what:
        case happened.ModelRead():
            return f"model {model} was read, digest {what.digest[:12]}"
        case happened.ModelRefused():
            return f"model {model} cannot be served: {what.reason}"
        case happened.ModelRemoved():
            return f"model {model} was removed"
        case happened.ModelRepaired():
            return f"model {model} was repaired ({what.steps}) and added; digest of the original: {what.original[:12]}"
        case happened.EngineMoved():
            return _because(f"{subject} ({what.backend}) is {what.state}", what.reason)
        case happened.EngineProgress():
            return f"{subject}: {formatting.far(what.phase, what.fraction, what.elapsed_s, what.estimate_s)}"
        case happened.EngineServes():
            return f"{subject} ({what.backend}) serves" if engine else f"{what.backend} serves model {model}"
        case happened.EngineEvicted():
            return f"{subject} was evicted {what.reason}, {formatting.size(what.bytes)}"
        case happened.HostLost():
            return _because(f"the host of {what.backend} was lost", what.reason)
        case happened.DeviceChanged():
            return f"the device changed: {'; '.join(_change(change) for change in what.changes)}"
        case happened.AlarmRaised():
            return f"alarm {what.alarm}: {what.message}"
        case happened.AlarmCleared():
            return f"alarm {what.alarm} cleared: {what.message}"
        case happened.CameraMoved():
            return _because(f"camera {what.camera} is {what.state}", what.reason)
        case happened.ZoneChanged():
            kept = f", saved in {what.file}" if what.file else ""
            return f"zone {what.zone} of camera {what.camera} is {'occupied' if what.occupied else 'free'}{kept}"
        case happened.Described():
            return f"camera {what.camera} ({what.rule}): {' '.join(what.text.split())}"
        case happened.CollectionStarted():
            frames, over = formatting.many(what.frames, "frame"), formatting.span(what.over_s)
            return f"collecting {frames} for model {model} over {over}"
        case happened.CollectionFinished():
            return f"collected {formatting.many(what.frames, 'frame')} for model {model}"
        case happened.Commanded():
            return f"operator command: {what.verb} {about or 'all'}"
        case None:
            return " ".join(filter(None, ("event unknown to this version of edged", about)))


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


def _change(change: happened.FactChange) -> str:
    return f"{change.name} {change.old or 'absent'} → {change.new or 'absent'}"
