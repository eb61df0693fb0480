"""Outcomes of admission on disk, so that a restart examines nothing again.

CACHE/admissions/DIGEST-KEY.json: the key is a digest of everything that the outcome depends on besides the model: the
version of edged and of the runtime, the limits, and the inputs. CACHE/runtimes/BACKEND.json: what a runtime supports.
A model that exceeded the limits is kept with the number of attempts; the caller says how many it allows.
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
from edged.ipc.job_messages import Check, Checked, RuntimeSupport
from edged.models.finding import Finding
from edged.store import atomic, sealed
from edged.version import __version__

_FORMAT = 6  # of these files and of the checks in the stages
_MOST = 1000  # outcomes; the oldest belong to models that were refused and removed


class Unread(msgspec.Struct, frozen=True):
    """A file that took its reader beyond the limits, and how many times in a row."""

    finding: Finding
    tries: int


class Outcomes:
    """Reads and writes the files; an outcome that cannot be read or written is found out again."""

    def __init__(self, cache: Path) -> None:
        self._outcomes, self._runtimes = cache / "admissions", cache / "runtimes"
        for folder in (self._outcomes, self._runtimes):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.sweep(folder)

    def known(self, job: Check, limits: AdmissionLimits) -> Checked | None:
        """Return the known outcome for this model and job."""
        place = self._place(job, limits)
        if place is None:
            return None
        return sealed.read(place, Checked, "admissions")

    def keep(self, job: Check, limits: AdmissionLimits, found: Checked) -> None:
        """Keep an outcome, and what the runtime supports."""
        backend = job.order.recipe.backend
        if found.support.version:
            self._write(self._runtimes / f"{backend}.json", sealed.seal(found.support))
        place = self._place(job, limits)
        if place is None:
            return
        # A child that was killed did not report which version it had loaded.
        if not judgement.is_lasting(found.finding) or registry.agree(found.support.version, _version(backend) or ""):
            self._write(place, sealed.seal(found))
            atomic.prune(self._outcomes, _MOST)

    def unread(self, graph: str, limits: AdmissionLimits) -> Unread | None:
        """Return how the reader of a file of that digest failed; None if it did not."""
        return sealed.read(self._unread_place(graph, limits), Unread, "admissions")

    def keep_unread(self, graph: str, limits: AdmissionLimits, unread: Unread) -> None:
        """Keep how the reader of a file failed."""
        self._write(self._unread_place(graph, limits), sealed.seal(unread))
        atomic.prune(self._outcomes, _MOST)

    def support(self, backend: str) -> RuntimeSupport | None:
        """Return what some version of a runtime supports, if known."""
        return sealed.read(self._runtimes / f"{backend}.json", RuntimeSupport, "runtimes")

    def forget(self, digest: str) -> None:
        """Remove the outcomes of a removed model."""
        for place in self._outcomes.glob(f"{digest}-*.json"):
            with contextlib.suppress(OSError):
                place.unlink()

    def _unread_place(self, graph: str, limits: AdmissionLimits) -> Path:
        said = "\0".join((str(_FORMAT), __version__, msgspec.json.encode(limits).decode()))
        return self._outcomes / f"{graph}-unread-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"

    def _place(self, job: Check, limits: AdmissionLimits) -> Path | None:
        """Return the outcome's path; None if something that it depends on is unknown."""
        version = _version(job.order.recipe.backend)
        if not job.order.digest or version is None:
            return None
        order = msgspec.structs.replace(job.order, model="")
        asked = msgspec.structs.replace(job, support=None, order=order, given=dict.fromkeys(job.given, ""))
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
    except OSError:  # missing, or not a regular file
        return False


def _version(backend: str) -> str | None:
    """Return the version of the installed runtime; None if unknown."""
    return registry.version(backend, runtimes.probe(Root()))
