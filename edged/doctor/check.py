"""One thing that was looked at: its name, what of the box it is about, how it stands, and what to do about it.

The names are for programs, too: they stay as they are once published. docs/doctor.md explains each.
"""

from __future__ import annotations

import enum

import msgspec


class Result(str, enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # it works, and something about it may hurt
    WRONG = "wrong"  # something does not work, or soon will not
    UNKNOWN = "unknown"  # it could not be looked at, or there is no such thing here


class Name(str, enum.Enum):
    """Everything that is looked at, in the order of the report."""

    # runtimes
    RUNTIME = "runtime"
    OPSET = "opset"
    PROVIDER = "provider"
    TELEMETRY = "telemetry"
    EXTRA = "extra"
    # hardware
    DRIVER = "driver"
    DEVICE_NODES = "device_nodes"
    POWER_MODE = "power_mode"
    THROTTLING = "throttling"
    TEMPERATURE = "temperature"
    # system
    MEMORY = "memory"
    MEMORY_LIMIT = "memory_limit"
    SWAP = "swap"
    SHARED_MEMORY = "shared_memory"
    DESCRIPTORS = "descriptors"
    KERNEL = "kernel"
    CONFINEMENT = "confinement"
    CLOCK = "clock"
    CLOCK_SYNC = "clock_sync"
    # disk
    STATE_FOLDER = "state_folder"
    CACHE_FOLDER = "cache_folder"
    DISK_SPACE = "disk_space"
    STORE = "store"
    # daemon
    DAEMON = "daemon"
    DAEMON_VERSION = "daemon_version"
    DAEMON_FACTS = "daemon_facts"
    SOCKET = "socket"
    HOSTS = "hosts"
    ALARM = "alarm"
    # models
    MODEL = "model"
    ADMISSION = "admission"
    MODEL_OPSET = "model_opset"
    EXTERNAL_DATA = "external_data"
    SHAPES = "shapes"
    BATCH = "batch"
    ENGINE = "engine"
    PLACEMENT = "placement"
    LATENCY = "latency"
    DRIFT = "drift"
    LEVELS = "levels"


class Check(msgspec.Struct, frozen=True):
    """`subject` is what of the box it is about (a runtime, a folder, a model); empty where the name says it. `message`
    and `remedy` are a line each; a remedy is given for what is wrong or may become so."""

    name: Name
    subject: str
    result: Result
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        # Messages quote runtimes, kernels and files, which may say anything over any number of lines.
        for field in ("subject", "message", "remedy"):
            msgspec.structs.force_setattr(self, field, _one_line(getattr(self, field)))


def ok(name: Name, message: str, subject: str = "") -> Check:
    return Check(name, subject, Result.OK, message)


def warning(name: Name, message: str, remedy: str, subject: str = "") -> Check:
    return Check(name, subject, Result.WARNING, message, remedy)


def wrong(name: Name, message: str, remedy: str, subject: str = "") -> Check:
    return Check(name, subject, Result.WRONG, message, remedy)


def unknown(name: Name, message: str, subject: str = "", remedy: str = "") -> Check:
    return Check(name, subject, Result.UNKNOWN, message, remedy)


def _one_line(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())


_BAD = {False: (Result.WRONG,), True: (Result.WRONG, Result.WARNING)}


class Report(msgspec.Struct, frozen=True):
    """The checks in the order of their names. `left_out` says in a line each what was not looked at, and why."""

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    def is_ok(self, *, strict: bool = False) -> bool:
        """Whether nothing is wrong; with `strict` warnings count as well. What is unknown never does."""
        return not any(check.result in _BAD[strict] for check in self.checks)

    def counts(self) -> dict[str, int]:
        """How many checks there are of each result."""
        return {result.value: sum(check.result is result for check in self.checks) for result in Result}
