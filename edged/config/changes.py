"""What a changed configuration means for a running daemon: which parts change now, and which wait. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from edged.config import Config


class Part(enum.Enum):
    """The part of a running daemon that a key belongs to. Only parts whose keys changed are touched."""

    TLS = "tls"  # files are read by the next handshake; the rest is applied when the daemon starts
    ACCESS = "access"  # applied from the next call on; streams by tokens that are gone end
    LISTENERS = "listeners"  # addresses for gRPC: new ones open, removed ones close, others stay open
    MODELS = "models"  # models that the configuration names: they come and go
    ENGINES = "engines"  # space, attempts and alarms: applied from the next pass of the control loop on
    BUILDS = "builds"  # limits of children: applied from the next one on
    HOSTS = "hosts"  # limits of hosts: applied to those that start from now on
    HEALTH = "health"  # probes and readiness: applied from the next probe on
    FRIGATE = "frigate"  # its endpoint is opened again
    FRAMES = "frames"  # the endpoint for frames is opened again
    PUBLISH = "publish"  # the publisher is opened again
    HTTP = "http"  # the listener is opened again
    METRICS = "metrics"  # the listener is opened again
    LOG = "log"  # applied from the next line on
    STOPPING = "stopping"  # applied when the daemon stops
    SHARED_MEMORY = "shared_memory"  # applied from the next registration on
    START = "start"  # applied when the daemon starts


# Every key of the configuration. A key applies only at the start if it names the daemon's folders, would unload models
# that clients loaded, or would end every running call.
PARTS: dict[str, Part] = {
    "tls": Part.TLS,
    "access": Part.ACCESS,
    "listen": Part.LISTENERS,
    "state": Part.START,
    "cache": Part.START,
    "models": Part.MODELS,
    "model_control": Part.START,
    "startup_models": Part.START,
    "engines": Part.ENGINES,
    "admission": Part.BUILDS,
    "build": Part.BUILDS,
    "hosts": Part.HOSTS,
    "frigate": Part.FRIGATE,
    "zmq.frames": Part.FRAMES,
    "zmq.publish": Part.PUBLISH,
    "http": Part.HTTP,
    "health": Part.HEALTH,
    "metrics": Part.METRICS,
    "log": Part.LOG,
    "max_message_mb": Part.START,
    "allow_shared_memory_over_tcp": Part.SHARED_MEMORY,
    "confinement": Part.START,
    "stop_seconds": Part.STOPPING,
}


class Change(msgspec.Struct, frozen=True):
    """A key with a new value; `key` is one of `PARTS`, `told` describes the change in one line."""

    key: str
    told: str

    @property
    def part(self) -> Part:
        """The part that it touches."""
        return PARTS[self.key]


class Outcome(msgspec.Struct, frozen=True):
    """The result of a change. `problem` says why it is not in force, and what to do; empty if it is."""

    key: str
    told: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.told}: {self.problem}" if self.problem else self.told


def diff(old: Config, new: Config) -> tuple[Change, ...]:
    """Return the changes from one configuration to another, in the order of `PARTS`."""
    return tuple(
        Change(key, "; ".join(_told(key, value(old, key), value(new, key))))
        for key in PARTS
        if value(old, key) != value(new, key)
    )


def value(config: Config, key: str) -> object:
    """Return the value of a key; a dot leads into a table."""
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def with_value(config: Config, other: Config, key: str) -> Config:
    """Return `config` with one key's value taken from `other`."""
    table, dot, name = key.partition(".")
    if not dot:
        return msgspec.structs.replace(config, **{key: getattr(other, key)})
    inner = msgspec.structs.replace(getattr(config, table), **{name: value(other, key)})
    return msgspec.structs.replace(config, **{table: inner})


def _told(key: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
        for name in old.__struct_fields__:
            yield from _told(f"{key}.{name}", getattr(old, name), getattr(new, name))
    elif isinstance(old, tuple) and isinstance(new, tuple):
        yield from (f"{key}: without {each}" for each in old if each not in new)
        yield from (f"{key}: {each} is new" for each in new if each not in old)
        if sorted(map(str, old)) == sorted(map(str, new)) and old != new:
            yield f"{key}: in another order"
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{key}: without {each}" for each in old if each not in new)
        yield from (f"{key}: {each} is {_word(new[each])}" for each in new if old.get(each) != new[each])
    elif old != new:
        yield f"{key}: {_word(old)} → {_word(new)}"


def _word(found: object) -> str:
    if isinstance(found, msgspec.Struct):
        return "there"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, tuple):
        return ", ".join(map(str, found)) or "none"
    return "none" if found is None or found == "" else str(found)
