"""What was found of models on runtimes, kept on disk: a restart examines nothing again.

CACHE/admissions/DIGEST-KEY.json, where the key is of everything that the outcome depends on besides the model: edged,
the runtime's version, the limits, and what it is asked with. CACHE/runtimes/BACKEND.json is how far a runtime goes.
What took too long or too much memory is kept with how often it did: who asks says how often that may be tried.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from edged.backends import registry
from edged.config.limits import AdmissionLimits
from edged.device import runtimes
from edged.device.root import Root
from edged.engines.admission import judgement
from edged.files import read_regular
from edged.ipc.job_messages import Check, Checked
from edged.models.finding import Finding
from edged.store import atomic, sealed
from edged.verification.reach import Reach
from edged.version import __version__

_FORMAT = 5  # of these files, and of what the stages look at
_MOST = 1000  # outcomes of models that were refused and never came back


class Unread(msgspec.Struct, frozen=True):
    """A file that took its reader beyond the limits, and how often in a row."""

    finding: Finding
    tries: int


class Outcomes:
    """Reads and writes files; what cannot be read is found out again, what cannot be written as well."""

    def __init__(self, cache: Path) -> None:
        self._outcomes, self._runtimes = cache / "admissions", cache / "runtimes"
        for folder in (self._outcomes, self._runtimes):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.sweep(folder)

    def known(self, job: Check, limits: AdmissionLimits) -> Checked | None:
        """What was found of this very model and question before."""
        place = self._place(job, limits)
        if place is None:
            return None
        return sealed.read(place, Checked, "admissions")

    def keep(self, job: Check, limits: AdmissionLimits, found: Checked) -> None:
        """Keeps an outcome, and how far the runtime goes."""
        backend = job.order.recipe.backend
        if found.reach.version:
            self._write(self._runtimes / f"{backend}.json", sealed.seal(found.reach))
        place = self._place(job, limits)
        if place is None:
            return
        # A child that was ended did not tell which version it had loaded.
        if not judgement.is_lasting(found.finding) or registry.agree(found.reach.version, _version(backend) or ""):
            self._write(place, sealed.seal(found))
            atomic.prune(self._outcomes, _MOST)

    def unread(self, graph: str, limits: AdmissionLimits) -> Unread | None:
        """What became of the reader of a file of that digest; None where none is known to have failed."""
        return sealed.read(self._unread_place(graph, limits), Unread, "admissions")

    def keep_unread(self, graph: str, limits: AdmissionLimits, unread: Unread) -> None:
        """Keeps what became of the reader of a file."""
        self._write(self._unread_place(graph, limits), sealed.seal(unread))
        atomic.prune(self._outcomes, _MOST)

    def reach(self, backend: str) -> Reach | None:
        """What was found out of some version of a runtime."""
        return sealed.read(self._runtimes / f"{backend}.json", Reach, "runtimes")

    def forget(self, digest: str) -> None:
        """Of a model that has gone."""
        for place in self._outcomes.glob(f"{digest}-*.json"):
            with contextlib.suppress(OSError):
                place.unlink()

    def _unread_place(self, graph: str, limits: AdmissionLimits) -> Path:
        said = "\0".join((str(_FORMAT), __version__, msgspec.json.encode(limits).decode()))
        return self._outcomes / f"{graph}-unread-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"

    def _place(self, job: Check, limits: AdmissionLimits) -> Path | None:
        """None where something is not known that the outcome depends on."""
        version = _version(job.order.recipe.backend)
        if not job.order.digest or version is None:
            return None
        order = msgspec.structs.replace(job.order, model="")
        asked = msgspec.structs.replace(job, reach=None, order=order, given=dict.fromkeys(job.given, ""))
        parts = [str(_FORMAT), __version__, version, *(msgspec.json.encode(part).decode() for part in (limits, asked))]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._outcomes / f"{job.order.digest}-{key[:16]}.json"

    @staticmethod
    def _write(place: Path, content: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk costs time at the next start, no more
            if not _holds(place, content):
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.write_file(place, content)


def _holds(place: Path, content: bytes) -> bool:
    try:
        return read_regular(place) == content
    except OSError:  # there is none, or something else is in its place
        return False


def _version(backend: str) -> str | None:
    """Of the runtime as it is installed now; None where that cannot be told."""
    return registry.version(backend, runtimes.probe(Root()))
