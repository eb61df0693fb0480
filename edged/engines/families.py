"""Recognises models by means of families from other packages. A family determines how outputs become boxes, classes,
masks or keypoints.

The daemon recognises edged's own families itself. For other families it starts a child, because their code must not run
in the daemon. The daemon sends the child the facts about the model, and receives a `Recognition`, which is plain data.
The child loads only families that the configuration allows.

CACHE/recognitions/DIGEST-KEY.json contains one answer. DIGEST is that of the model, and KEY is a digest of the request.
The request includes a digest of each package's files, so a cached answer is not used after a package has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from edged import family_packages
from edged.config.child_limits import Limits
from edged.engines.child import ChildLost, run
from edged.engines.child_watch import Patience
from edged.errors import ConfigError, FamilyFailed
from edged.family_packages import Offer
from edged.ipc import job_messages as jobs
from edged.models.inspection import Inspection
from edged.store import atomic, sealed
from edged.version import __version__
from edged.vision.families.contract import CONTRACT
from edged.vision.family import FAMILIES, RAW, Recognition, recognise

_LOG = logging.getLogger("edged.engines")
_FORMAT = 2  # of the cached answers; raise this number when `jobs.families` or `vision.family.recognise` changes
_KEPT = 1000  # cached answers
_LIMITS = Limits(seconds=30.0, memory_mb=4096, stall_seconds=30.0)  # packages may import large libraries
_STARVED = 4.0  # a child that waits for a processor gets up to this many times the limit as extra time


class Families:
    """The families of other packages that models may use. `allowed` has the names that the configuration allows."""

    def __init__(self, cache: Path, allowed: Iterable[str] = (), limits: Limits = _LIMITS) -> None:
        """`limits` apply to a child that recognises a model."""
        self._folder, self._limits = cache / "recognitions", limits
        self.allowed = frozenset(allowed)
        self._seen: tuple[Offer, ...] | None = None  # the offers for `allowed` families; None before the first look
        self._is_changed = False  # whether `allowed` was replaced since the last look

    def allow(self, names: Iterable[str]) -> None:
        """Replace the allowed families. Models that are read from now on use them."""
        before, self.allowed = self.allowed, frozenset(names)
        self._is_changed = self._is_changed or before != self.allowed

    async def look(self) -> bool:
        """Return whether the allowed families or their packages changed since the last look, so that models must be
        recognised again. Log the allowed families that cannot be used."""
        before, is_changed = self._seen, self._is_changed
        if not self.allowed and not before and not is_changed:
            return False  # nothing to look at
        found = await asyncio.to_thread(family_packages.offers)
        self._seen, self._is_changed = tuple(offer for offer in found if offer.family in self.allowed), False
        if is_changed or self._seen != before:
            for why in filter(None, (self.obstacle(name, found) for name in sorted(self.allowed))):
                _LOG.warning("families.allow: %s", why)
        return is_changed or (before is not None and self._seen != before)

    def folders(self) -> tuple[str, ...]:
        """Return the files and folders that a process reads when it imports the allowed families. This method reads the
        disk."""
        return tuple(path for name in sorted(self.allowed) for path in family_packages.folders(name))

    async def load(self, offers: Iterable[Offer]) -> tuple[str, ...]:
        """Load families in a child. Return, for each family, the reason why it cannot be used; empty if it can be
        used."""
        asked = tuple(offers)
        problems = dict[Offer, str]()
        while left := tuple(offer for offer in asked if offer not in problems):
            phase = _Phase()
            try:
                found = await run(jobs.LoadFamilies(left), jobs.LoadedFamilies, self._limits, on_progress=phase.note)
                problems |= zip(left, found.problems, strict=True)
            except ChildLost as error:  # the other families are loaded without the family that ended the child
                problems |= {offer: f"{_named((offer,))}: the {error}" for offer in phase.culprits(left) or left}
        return tuple(problems[offer] for offer in asked)

    async def recognise(self, inspection: Inspection, settings: Mapping[str, str]) -> Recognition | None:
        """Return the recognition of a model if a family of another package can decode the model; otherwise None.

        If the settings name a family that is not allowed, the model is served without decoding, and
        `Recognition.reason` says how to allow the family. Raises ConfigError if the family cannot be used or does not
        fit the model, and FamilyFailed if its code fails. Raises ChildLost if the child exceeds its limits, and
        Superseded if the package changes during the call.
        """
        wanted = settings.get("family")
        if wanted is None:
            return await self._by_rules(inspection, settings) if self.allowed else None
        return None if wanted in (*FAMILIES, RAW) else await self._by_setting(wanted, inspection, settings)

    async def _by_rules(self, inspection: Inspection, settings: Mapping[str, str]) -> Recognition | None:
        own = _recognise(inspection, settings)
        if own.family is not None or not own.input:
            return None
        found = await asyncio.to_thread(family_packages.offers)
        allowed = (offer for offer in found if offer.family in self.allowed)
        usable = tuple(offer for offer in allowed if not self.obstacle(offer.family, found))
        return await self._ask(usable, inspection, settings, own) if usable else None

    async def _by_setting(self, wanted: str, inspection: Inspection, settings: Mapping[str, str]) -> Recognition | None:
        found = await asyncio.to_thread(family_packages.offers)
        offer = next((each for each in found if each.family == wanted), None)
        if wanted in self.allowed and (why := self.obstacle(wanted, found)):
            raise ConfigError(f"family={wanted[:60]}: {why}; or set family={RAW}")
        if offer is None:
            return None  # an unknown name: `vision.family.recognise` suggests the closest one
        if wanted not in self.allowed:
            return _not_allowed(offer, _recognise(inspection, {**settings, "family": RAW}))
        return await self._ask((offer,), inspection, settings, None)

    def forget(self, digest: str) -> None:
        """Remove the cached answers of a removed model."""
        for place in self._folder.glob(f"{digest}-*.json"):
            with contextlib.suppress(OSError):
                place.unlink()

    def obstacle(self, name: str, found: Iterable[Offer]) -> str:
        """Return why a family of another package cannot be used; empty if it can be used. Does not check whether the
        family is allowed."""
        offer = next((each for each in found if each.family == name), None)
        if name in FAMILIES or name == RAW:
            return f"{name!r} is edged's own family; it cannot be replaced and needs no permission"
        if offer is None:
            return (
                f"no package offers family {name!r}; install its package for {sys.executable}, or remove the name from"
                " families.allow"
            )
        return f"family {name} of package {offer.package}: {offer.problem}" if offer.problem else ""

    async def _ask(
        self, offers: tuple[Offer, ...], inspection: Inspection, settings: Mapping[str, str], own: Recognition | None
    ) -> Recognition:
        """Return the cached answer, or ask a child. `own` is the recognition by edged's own families; None if the
        settings name the family."""
        operators, heads = tuple(inspection.operators), inspection.heads
        job = jobs.Recognise(offers, inspection.signature, inspection.metadata, dict(settings), operators, heads)
        parts = f"{_FORMAT}\0{__version__}\0{CONTRACT}\0".encode() + msgspec.json.encode(job)
        place = self._folder / f"{inspection.digest}-{hashlib.sha256(parts).hexdigest()[:16]}.json"
        known = await asyncio.to_thread(sealed.read, place, Recognition, "recognitions")
        if known is not None:
            return known
        found = await self._ask_child(job, own)
        if not found.problems:  # otherwise not cached: a failed family may work once another package is installed
            await asyncio.to_thread(self._keep, place, found.recognition)
            return found.recognition
        if found.recognition.family is not None:
            return found.recognition
        return msgspec.structs.replace(found.recognition, reason="; ".join((found.recognition.reason, *found.problems)))

    async def _ask_child(self, job: jobs.Recognise, own: Recognition | None) -> jobs.Recognised:
        phase, patience = _Phase(), Patience(starved_seconds=self._limits.seconds * _STARVED)
        try:
            found = await run(job, jobs.Recognised, self._limits, on_progress=phase.note, patience=patience)
        except ChildLost as error:
            if error.how == "killed":
                raise
            culprits = phase.culprits(job.families)
            why = f"{_named(culprits or job.families)}: {phase.name and f'{phase.name}: '}the {error}"
            if own is not None:  # the settings name no family, so the remaining families are tried
                others = tuple(offer for offer in job.families if offer not in culprits)
                if not culprits or not others:
                    return jobs.Recognised(own, (why,))
                found = await self._ask_child(msgspec.structs.replace(job, families=others), own)
                return msgspec.structs.replace(found, problems=(why, *found.problems))
            raise (FamilyFailed(why) if error.how == "crashed" else ChildLost(why, error.how)) from error
        answer = found.recognition
        asked = [(offer.family, offer.package) for offer in job.families]
        if answer.package is not None and (answer.family, answer.package) not in asked:
            raise FamilyFailed(
                f"{_named(job.families)}: its code named a family that was not requested, {str(answer.family)[:60]!r};"
                f" install a newer version of the package, or give family={RAW}"
            )
        return found

    def _keep(self, place: Path, found: Recognition) -> None:
        with contextlib.suppress(OSError):  # without the cache, the next start takes longer
            sealed.write(place, found)
            atomic.prune(self._folder, _KEPT)


class _Phase:
    """The phase that a child reported last; empty before its first progress message."""

    name = ""

    def note(self, progress: jobs.Progress) -> None:
        self.name = progress.phase

    def culprits(self, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
        """Return the family that the child was importing when it ended; empty if the child was doing something else."""
        return tuple(offer for offer in offers if jobs.loading(offer.family) == self.name)


def _named(offers: tuple[Offer, ...]) -> str:
    return ", ".join(f"family {offer.family} of package {offer.package}" for offer in offers)


def _not_allowed(offer: Offer, raw: Recognition) -> Recognition:
    """Return the recognition of a model whose family is installed, but not allowed."""
    why = (
        f"family {offer.family} of package {offer.package} is not allowed;"
        f' add "{offer.family}" to families.allow in the configuration'
    )
    return msgspec.structs.replace(raw, reason=why)


def _recognise(inspection: Inspection, settings: Mapping[str, str]) -> Recognition:
    about, signature = inspection, inspection.signature
    return recognise(signature.inputs, signature.outputs, about.metadata, settings, about.operators, about.heads)
