"""The record of a rollout: one JSON file in the user's data folder, written after every step."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from edged import paths
from edged.cli.rollout.plan import Figures
from edged.decoding import explain, ready
from edged.errors import InvalidInput, NotFound, Refused
from edged.files import NOT_JSON, read_regular
from edged.store import atomic

_FOLDER = "rollouts"
_ID = re.compile(r"[\w.-]{1,80}", re.ASCII)
_WRITING = threading.Lock()  # several threads save: an older state must not replace a newer one

# started: the change may or may not be in force on the box, for example after a power cut.
BoxState: TypeAlias = Literal["waiting", "started", "done", "failed", "rolled back", "not rolled back"]
_GONE_WRONG = ("failed", "rolled back", "not rolled back")
# aborting: boxes are being changed back.
State: TypeAlias = Literal["running", "aborting", "done", "aborted"]


class Order(msgspec.Struct, frozen=True):
    """The change that is rolled out. `kind` is one of `changes.KINDS`. `digest` is the digest of the model in `file`,
    with its external data."""

    kind: str
    model: str = ""
    file: str = ""
    digest: str = ""
    settings: dict[str, str] = {}
    force: bool = False

    @property
    def can_be_undone(self) -> bool:
        """Whether a box can get back the model or the settings that it had before the change."""
        return self.kind in ("models", "settings")


class BoxRecord(msgspec.Struct):
    """The progress of one box. `before` and `after` are its figures before and after the change. `had` is the box's
    state before the change, for `Change.undo`. `seconds` is how long the change took."""

    state: BoxState = "waiting"
    before: Figures | None = None
    after: Figures | None = None
    had: dict[str, str] | None = None
    seconds: float = 0.0
    problem: str = ""


class Step(msgspec.Struct, frozen=True):
    """A line of the history."""

    unix_s: float
    text: str


class Record(msgspec.Struct):
    """A rollout. Times are seconds since the epoch."""

    id: str
    order: Order
    waves: list[list[str]]
    abort_on: str
    watch_s: float
    inventory: str
    targets: list[str]
    groups: list[str]
    addresses: dict[str, str]  # of the boxes
    user: str
    began_unix_s: float
    state: State = "running"
    why: str = ""
    watched: int = 0  # waves that were watched to the end
    boxes: dict[str, BoxRecord] = {}
    history: list[Step] = []

    @property
    def only_undo(self) -> bool:
        """Whether boxes may only be changed back. This is so once a box has failed or the rollout is being aborted."""
        return self.state in ("aborting", "aborted") or any(box.state in _GONE_WRONG for box in self.boxes.values())

    @property
    def can_be_resumed(self) -> bool:
        """Whether boxes are left to change, or to change back."""
        lost = self.order.can_be_undone and any(box.state == "not rolled back" for box in self.boxes.values())
        return lost or self.state in ("running", "aborting")

    def note(self, text: str) -> None:
        """Add a line to the history, and write the file."""
        self.history.append(Step(time.time(), text))
        self.save()

    def save(self) -> None:
        """Write the file. Raises Refused if that fails: without its record, a rollout could not be continued."""
        place = _place(self.id)
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _WRITING:
                atomic.write_file(place, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n", 0o600)
        except OSError as error:
            raise Refused(
                f"the rollout's record {place} cannot be written: {error.strerror}; correct this, then see:"
                " edged fleet rollout list"
            ) from None


def new_id(order: Order) -> str:
    """Return an unused name for a new rollout, made of the current time, the kind of change and the model."""
    about = re.sub(r"[^\w.-]", "-", order.model, flags=re.ASCII)[:40]
    name = "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), order.kind, about)))
    return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 10_000))) if not _place(each).exists())


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Lock a rollout, so that no other command carries it out. Raises Refused if another command has the lock, or if
    the lock file cannot be written."""
    place = _place(name).with_suffix(".lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = place.open("w")
    except OSError as error:
        raise Refused(
            f"the rollout's lock file {place} cannot be written: {error.strerror}; correct this, then try again"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another command is carrying out rollout {name}; wait until it ends") from None
        yield


def user() -> str:
    """Return the name of the user who runs this command; "unknown" if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name
        return "unknown"


def load(name: str) -> Record:
    """Read a record. Raises InvalidInput for an invalid name, NotFound if there is no such rollout, Refused if the
    record is damaged."""
    if not _ID.fullmatch(name):
        raise InvalidInput(f"{name[:40]!r} is not the name of a rollout; see: edged fleet rollout list")
    try:
        return msgspec.json.decode(read_regular(_place(name)), type=ready(Record))
    except FileNotFoundError:
        raise NotFound(f"rollout {name} does not exist; see: edged fleet rollout list") from None
    except OSError as error:
        raise Refused(f"the rollout's record {_place(name)} cannot be read: {error.strerror or error}") from None
    except NOT_JSON as error:
        raise Refused(f"the rollout's record {_place(name)} is damaged: {explain(error)}") from None


def names() -> list[str]:
    """Return the names of all rollouts, the oldest first."""
    return sorted(path.stem for path in _place("x").parent.glob("*.json"))


def _place(name: str) -> Path:
    return paths.user_data_dir() / _FOLDER / f"{name}.json"
