"""Shares engines through an object store. Before a build, the daemon looks for the engine there. After a build, it
publishes the engine there.

The daemon accepts an engine of another box only if it trusts the signer and if the signature, the key and the digests
are right. Then it verifies the engine like one that was built here. If the store cannot be reached, is slow, or returns
wrong data, the box builds the engine itself, and an alarm gives the reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from edged.backends.artefact import Artefact
from edged.backoff import Backoff
from edged.config.schema import Fleet
from edged.errors import (
    ConfigError,
    DaemonUnavailable,
    EdgedError,
    EngineDamaged,
    NotFound,
    OutOfSpace,
    Refused,
    TooLarge,
    WrongAnswers,
)
from edged.fleet import bucket, leases
from edged.fleet import manifest as manifests
from edged.fleet.bucket import Bucket, Patience
from edged.fleet.keys import Keys, is_signed
from edged.fleet.leases import Lease, Leases, Pace
from edged.fleet.manifest import Manifest, Signed
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.tasks import until_set
from edged.version import __version__

_LOG = logging.getLogger("edged.fleet")
_PAUSES_S = (30.0, 60.0, 300.0, 900.0)  # how long the store is not used after its first, second, ... failure in a row
_LOOK_S = 900.0  # between two searches for engines of this box that are not published yet
_ASIDE_S = 1800.0  # until an engine that could not be tried is tried again


class Timing(NamedTuple):
    """Times in seconds; tests shorten them. While another box builds an engine, the daemon asks every `poll_s` whether
    the engine is ready. `pauses_s` are the pauses after failures of the store."""

    poll_s: float = 20.0
    pace: Pace = leases.USUAL
    patience: Patience = bucket.USUAL
    pauses_s: tuple[float, ...] = _PAUSES_S


USUAL = Timing()


class Found(NamedTuple):
    """An engine or a timing cache in the store that this box may try. `signer` is the name of the box that published
    it."""

    manifest: Manifest
    signer: str
    bucket: Bucket

    @property
    def identity(self) -> tuple[str, str]:
        """The engine's key and edition. If the engine is built again with the same key, its edition is different."""
        record = self.manifest.record
        return self.manifest.name, record.edition if record is not None else ""


class Turn(NamedTuple):
    """Which box builds an engine: the box `other`, or this box if `other` is empty. `lease` is this box's lease, or
    None if this box builds without a lease."""

    other: str = ""
    lease: Lease | None = None


class Link:
    """The state of one direction of the link to the store, reading or writing. After a failure, `is_up` is False for a
    while. Times are in seconds, on the caller's clock."""

    def __init__(self, pauses_s: tuple[float, ...]) -> None:
        self._pauses_s = pauses_s
        self._backoff = Backoff(pauses_s)
        self.problem, self.until = "", 0.0

    def is_up(self, now: float) -> bool:
        return now >= self.until

    def failed(self, problem: str, now: float) -> None:
        self.problem, self.until = problem, now + self._backoff.after(0.0)

    def worked(self) -> None:
        if self.problem:
            self.problem, self._backoff = "", Backoff(self._pauses_s)


class Trouble(NamedTuple):
    """A problem of the store, or of one engine in it. `engine` is the engine's key, empty for the store."""

    message: str
    engine: str = ""


class EngineSharing:
    """Finds, fetches and publishes engines. Without a configured store it does nothing."""

    def __init__(
        self,
        store: Store,
        state: Path,
        timing: Timing = USUAL,
        holder: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` is the daemon's state directory; `holder` is the name under which this box builds."""
        self.keys = Keys(state)
        self.timing = timing
        self._store, self._holder, self._clock = store, holder or platform.node() or "a box", clock
        self._settings = Fleet()
        self._bucket: Bucket | None = None
        self._leases: Leases | None = None
        self._trouble: dict[str, str] = {}  # by the key of an engine
        self._reading, self._writing = Link(timing.pauses_s), Link(timing.pauses_s)
        # By identity: the time until which a refused engine is not tried; infinite if the engine was altered or answers
        # wrongly here.
        self._refused: dict[tuple[str, str], float] = {}
        self._published: set[tuple[str, str]] = set()
        self._altered: set[str] = set()  # digests of files that have another content in the store
        self._waiting: dict[str, float] = {}  # by key: since when this box waits for another box's build
        self._woken = asyncio.Event()

    def reconfigure(self, settings: Fleet) -> None:
        """Use new settings from now on. Raises ConfigError for an address that cannot be used."""
        opened = Bucket(settings.store, self.timing.patience) if settings.store else None
        if self._leases is not None:
            self._leases.stop()
        self._settings, self._bucket = settings, opened
        self._leases = Leases(opened, self._holder, self.timing.pace, self._clock) if opened is not None else None
        self._trouble = {}
        self._reading, self._writing = Link(self.timing.pauses_s), Link(self.timing.pauses_s)
        self._published.clear()
        self._woken.set()

    def troubles(self) -> Iterator[Trouble]:
        """Yield the current problems, for alarms."""
        if why := self._reading.problem:
            yield Trouble(f"engines cannot be shared: {why}; serving continues; this box builds its engines itself")
        elif why := self._writing.problem:
            yield Trouble(f"engines cannot be shared: {why}; this box still uses the store's engines, but adds none")
        for engine, message in self._trouble.items():
            yield Trouble(message, engine)

    @property
    def is_on(self) -> bool:
        """Whether a store is configured and the daemon may read from the store now. After a failure, the daemon pauses
        reading for a while."""
        return self._bucket is not None and self._reading.is_up(self._clock())

    @property
    def _publishes(self) -> bool:
        """Whether engines may be published now."""
        return self.is_on and self._settings.publish and self._writing.is_up(self._clock())

    # -- before a build -----------------------------------------------------------------------------------------------

    async def find(self, key: EngineKey) -> Found | None:
        """Return the engine with this key. Return None if the store has no such engine or cannot be used now, or if
        this box has refused the engine or does not trust its signer."""
        bucket = self._bucket
        if bucket is None or not self.is_on:
            return None
        try:
            found = await self._manifest(bucket, "engine", key.digest, key)
        except (Refused, TooLarge) as error:  # altered, or signed by a box that is not trusted
            self._complain(key.digest, f"engine {key.digest[:12]} of the shared store is not used: {error}")
            return None
        except EdgedError as error:
            self._failed(self._reading, error)
            return None
        self._reading.worked()
        if found is not None and self._clock() < self._refused.get(found.identity, 0.0):
            return None
        self._trouble.pop(key.digest, None)
        if found is not None:
            self._waiting.pop(key.digest, None)
        return found

    async def fetch(self, found: Found, out: Path) -> EngineRecord:
        """Write the files of an engine into a folder; return the record of the engine. Raises Refused if a file does
        not match the manifest, and the errors of `Bucket`."""
        assert found.manifest.record is not None  # `find` has checked this
        await self._fetch_files(found.bucket, found.manifest, out)
        return msgspec.structs.replace(
            found.manifest.record, shared_by=found.signer, adopted_from="", ahead="", judgement=None
        )

    async def fetch_timings(self, place: Path) -> None:
        """Fetch the timing cache of TensorRT for this device, unless the file `place` exists."""
        bucket = self._bucket
        if bucket is None or not self.is_on or await asyncio.to_thread(place.exists):
            return
        part = place.with_name(f".{place.name}.fetched")
        try:
            found = await self._manifest(bucket, "timings", place.name)
            if found is not None and [*found.manifest.files] == [place.name]:
                await asyncio.to_thread(part.mkdir, exist_ok=True)
                await self._fetch_files(bucket, found.manifest, part)
                await asyncio.to_thread(os.replace, part / place.name, place)
        except (EdgedError, OSError) as error:  # the build takes longer without the cache
            _LOG.info("the timing cache %s of the shared store is not used: %s", place.name, error)
        finally:
            await asyncio.to_thread(_remove, part)

    async def turn(self, key: EngineKey) -> Turn:
        """Return which box builds an engine. If another box builds it, call this again after `timing.poll_s`."""
        leases = self._leases
        if not self.is_on or leases is None:
            return Turn()
        name, link = key.digest, self._reading
        try:
            if other := await leases.holder(name):
                waited = self._clock() - self._waiting.setdefault(name, self._clock())
                return Turn(other) if waited < self._settings.wait_minutes * 60 else Turn()
            if not self._publishes:
                return Turn()
            link = self._writing
            lease = await leases.take(name)
        except EdgedError as error:
            self._failed(link, error)
            return Turn()
        if leases is not self._leases:  # reconfigured meanwhile: nothing would end renewals by the old object
            return Turn()
        self._writing.worked()
        self._waiting.pop(name, None)
        if lease is None:
            return Turn("another box")
        leases.hold(name, lease)
        return Turn(lease=lease)

    async def built(self, key: EngineKey, timings: Path | None) -> None:
        """Publish an engine that was built just now, if it is usable. Then release its lease, because other boxes may
        wait for the lease. `timings` is the file of TensorRT's timing cache, or None for other backends."""
        held, bucket = self._leases, self._bucket
        self._waiting.pop(key.digest, None)
        try:
            record = self._store.records().get(key.digest)
            if record is not None and record.is_usable:
                self._trouble.pop(key.digest, None)  # the box no longer needs the engine in the store
            if bucket is not None and self._publishes and record is not None and self._is_due(record):
                await self._publish(bucket, record)
                if timings is not None:
                    await self._publish_timings(bucket, timings)
        except EdgedError as error:
            self._failed(self._writing, error)
        finally:
            if held is not None:
                await held.release(key.digest)

    def refuse(self, found: Found, error: EdgedError) -> None:
        """Refuse an engine forever if `error` means that the engine was altered or gives wrong answers on this box.
        After another error, such as lack of memory, refuse it for half an hour. After DaemonUnavailable, only pause
        reading."""
        if isinstance(error, DaemonUnavailable):
            self._failed(self._reading, error)
            return
        is_wrong = isinstance(error, (Refused, WrongAnswers, EngineDamaged))
        self._refused[found.identity] = math.inf if is_wrong else self._clock() + _ASIDE_S
        self._complain(
            found.manifest.name,
            f"engine {found.manifest.name[:12]} from {found.signer} in the shared store cannot be used; this box builds"
            f" the engine itself: {error}",
        )

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publish the engines of this box that the store does not have. Repeat this about every 15 minutes, until
        cancelled."""
        while True:
            self._woken.clear()
            bucket = self._bucket
            try:
                for record in list(self._store.records().values()):
                    if bucket is not None and bucket is self._bucket and self._publishes and self._is_due(record):
                        await self._publish(bucket, record)
            except EdgedError as error:
                self._failed(self._writing, error)
            down = max(self._reading.until, self._writing.until) - self._clock()
            await until_set(self._woken, down if down > 0 else _LOOK_S)

    def _is_due(self, record: EngineRecord) -> bool:
        """Whether this box built the engine itself, can use it, and has not published it yet."""
        own = not (record.shared_by or record.adopted_from or record.ahead or record.recipe.is_reference)
        identity = EngineKey(record.parts).digest, record.edition
        return own and record.is_usable and bool(record.files) and identity not in self._published

    async def _publish(self, bucket: Bucket, record: EngineRecord) -> None:
        name = EngineKey(record.parts).digest
        try:
            if await self._is_needed(bucket, EngineKey(record.parts)):
                artefact = self._store.artefact(name)
                await asyncio.to_thread(artefact.check)
                kept = msgspec.structs.replace(record, judgement=None, shared_by="")
                await self._put(bucket, "engine", name, artefact, kept)
                self._writing.worked()
                self._trouble.pop(name, None)
                _LOG.info("model %s: engine %s is published", record.model, name[:12])
        except (EngineDamaged, KeyError, OSError):  # the engine was replaced or evicted meanwhile
            pass
        self._published.add((name, record.edition))

    async def _is_needed(self, bucket: Bucket, key: EngineKey) -> bool:
        """Whether this box should publish its engine with this key. The result is True if the store has no engine with
        the key, an invalid manifest, or an engine that this box has refused forever. The result is False if an
        untrusted box signed the stored engine. That box may not trust this box either, so the two boxes would replace
        each other's engine forever."""
        try:
            known = await self._manifest(bucket, "engine", key.digest, key)
        except Untrusted:
            return False
        except (Refused, TooLarge):
            return True
        return known is None or math.isinf(self._refused.get(known.identity, 0.0))

    async def _publish_timings(self, bucket: Bucket, place: Path) -> None:
        """Publish the timing cache of this device."""
        if not await asyncio.to_thread(place.is_file):
            return
        whole = await asyncio.to_thread(Artefact.seal_file, place)
        await self._put(bucket, "timings", place.name, whole, None)

    async def _put(
        self, bucket: Bucket, kind: manifests.Kind, name: str, artefact: Artefact, record: EngineRecord | None
    ) -> None:
        """Write files, then their manifest, so that a manifest never names a file that is missing."""
        for file, about in artefact.files.items():
            place = manifests.blob(about)
            if about.sha256 in self._altered or await bucket.size(place) != about.size:
                await bucket.upload(place, Path(artefact.root) / file)
                self._altered.discard(about.sha256)
        found = Manifest(manifests.FORMAT, kind, name, artefact.files, record, __version__, time.time())
        text, content = manifests.signed_text(found)
        signer, signature = await asyncio.to_thread(self.keys.sign, content)
        where = manifests.place(kind, name)
        if kind == "engine" and (before := await bucket.read(where, manifests.LARGEST)) is not None:
            await bucket.write(manifests.place_before(name), before)
        await bucket.write(where, msgspec.json.encode(Signed(signer, signature, text)))

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _manifest(
        self, bucket: Bucket, kind: manifests.Kind, name: str, key: EngineKey | None = None
    ) -> Found | None:
        """Return a manifest that this box trusts; None if the store has no manifest. Raises Refused if the manifest is
        not trusted or not valid, and the errors of `Bucket`."""
        data = await bucket.read(manifests.place(kind, name), manifests.LARGEST)
        if data is None:
            return None
        return Found(*await asyncio.to_thread(checked, data, self.keys, kind, name, key), bucket)

    async def _fetch_files(self, bucket: Bucket, found: Manifest, out: Path) -> None:
        for file, about in found.files.items():
            try:
                digest = await bucket.save(manifests.blob(about), out / file, about.size)
            except NotFound:
                raise Refused(f"file {file} is missing in the shared store") from None
            except TooLarge:
                digest = ""
            if digest != about.sha256 or (out / file).stat().st_size != about.size:
                self._altered.add(about.sha256)
                raise Refused(f"file {file} of the shared store was altered: its content does not match the manifest")

    def _failed(self, link: Link, error: EdgedError) -> None:
        """Pause one direction of the link to the store, reading or writing, after a failure. Do not pause if only this
        box's own disk is full."""
        if isinstance(error, OutOfSpace):
            return
        if link.problem != str(error):
            _LOG.warning("engines cannot be shared: %s", error)
        link.failed(str(error), self._clock())

    def _complain(self, engine: str, message: str) -> None:
        if self._trouble.get(engine) != message:
            _LOG.warning("%s", message)
        self._trouble[engine] = message


class Untrusted(Refused):
    """Raised if this box does not trust the box that signed a manifest."""


def checked(
    data: bytes, keys: Keys, kind: manifests.Kind, name: str, key: EngineKey | None = None
) -> tuple[Manifest, str]:
    """Return the manifest in `data`, and the name of the box that signed it. Raises Refused unless a trusted box signed
    the manifest and `manifests.check` accepts it."""
    signed = manifests.parse(data)
    try:
        signer = keys.name_of(signed.signer)
    except ConfigError as error:
        raise Refused(str(error)) from None
    if not is_signed(signed.signer, signed.signature, signed.content):
        key_of = f"the key of {signer}" if signer else "the key that the manifest names"
        raise Refused(
            f"the manifest or its signature was altered: the signature does not match the content and {key_of}"
        )
    if not signer:
        raise Untrusted(
            "the manifest is signed with a key that is not trusted; to trust this key: edged fleet trust NAME"
            f" {signed.signer}"
        )
    manifest = signed.read()
    manifests.check(manifest, kind, name, key)
    return manifest, signer


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
