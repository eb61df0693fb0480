"""Lists, prunes and rolls back the engines in a shared store, for operators."""

from __future__ import annotations

import asyncio
import re
import time

import msgspec

from edged.errors import EdgedError, InvalidInput, NotFound, Refused
from edged.fleet import manifest as manifests
from edged.fleet.bucket import Bucket, Item
from edged.fleet.keys import Keys
from edged.fleet.sharing import checked

_SPARED_S = 86_400.0  # younger files may belong to an engine that is being published
_AT_ONCE = 8
# Names of the objects that `prune` may delete.
_OWN = re.compile(r"blobs/[0-9a-f]{64}|engines/[0-9a-f]{32}\.(json|before)")


class Shared(msgspec.Struct, frozen=True):
    """A published engine. If `problem` is not empty, it says why this box would not use the engine; all fields except
    `key` are then unknown."""

    key: str
    model: str = ""
    backend: str = ""
    precision: str = ""
    device: str = ""
    signer: str = ""
    bytes: int = 0
    published_unix_s: float = 0.0
    edged_version: str = ""
    problem: str = ""


class Pruned(msgspec.Struct, frozen=True):
    """The objects that `prune` removed, or would remove with `dry_run`. `engines`: the keys of the engines. `files`:
    the number of files that no manifest names. `bytes`: the size of all these objects."""

    engines: list[str]
    files: int
    bytes: int


class Shelf:
    """The engines in a bucket. Calls raise the errors of `Bucket`."""

    def __init__(self, bucket: Bucket, keys: Keys) -> None:
        self._bucket, self._keys = bucket, keys

    async def engines(self) -> list[Shared]:
        """Return all published engines."""
        return [self._described(key, data) for key, data in sorted((await self._manifests()).items())]

    def _described(self, key: str, data: bytes) -> Shared:
        try:
            manifest, signer = checked(data, self._keys, "engine", key)
            record = manifest.record
            if record is None:
                raise Refused("the manifest has no record of an engine")
        except EdgedError as error:
            return Shared(key, problem=str(error))
        gpu = next((value for name, value in record.parts.items() if name.endswith(".name")), "")
        return Shared(
            *(key, record.model, record.recipe.backend, record.recipe.precision),
            *(gpu or record.parts.get("cpu.model", record.recipe.device), signer, manifest.size),
            *(manifest.published_unix_s, manifest.edged_version),
        )

    async def prune(self, older_s: float, *, dry_run: bool = False) -> Pruned:
        """Remove engines that were published more than `older_s` seconds ago, and files that no manifest names. With
        `dry_run`, remove nothing."""
        now, items = time.time(), [each for each in await self._bucket.list("engines") if _OWN.fullmatch(each.name)]
        old = [each for each in items if now - each.unix_s > older_s]
        gone = sorted({each.name.partition("/")[2].partition(".")[0] for each in old if each.name.endswith(".json")})
        kept = [each.name for each in items if each not in old]
        kept += [each.name for each in await self._bucket.list("timings")]
        needed = await self._files(kept)
        unused = [each for each in await self._bucket.list("blobs") if _is_unused(each, needed, now)]
        if not dry_run:
            for each in (*old, *unused):  # manifests first: they must not name missing files
                await self._bucket.delete(each.name)
        return Pruned(gone, len(unused), sum(each.size for each in (*old, *unused)))

    async def _files(self, names: list[str]) -> set[str]:
        """Return the names of the objects that the manifests with these names need. Raises Refused if a manifest cannot
        be read, because its files may be needed."""
        needed: set[str] = set()
        for name, data in zip(names, await self._read(names), strict=True):
            if data is not None:
                try:
                    needed |= {manifests.blob(file) for file in manifests.parse(data).read().files.values()}
                except Refused as error:
                    raise Refused(
                        f"nothing was removed, because edged cannot find out which files manifest {name} needs:"
                        f" {error}; if the manifest is damaged, delete the object {name} in the store"
                    ) from None
        return needed

    async def rollback(self, start: str) -> bool:
        """Restore the previous manifest of the engine whose key begins with `start`, or remove the engine if it has no
        previous manifest. Return whether a previous manifest was restored. Raises NotFound, or InvalidInput if several
        keys begin with `start`."""
        found = [key for key in map(_key, await self._names()) if key.startswith(start)]
        if not found:
            raise NotFound(f"{self._bucket.place} has no engine whose key begins with {start!r}; see: edged fleet list")
        if len(found) > 1:
            raise InvalidInput(f"the keys of {len(found)} engines begin with {start!r}; give more characters")
        place, place_before = manifests.place("engine", found[0]), manifests.place_before(found[0])
        before = await self._bucket.read(place_before, manifests.LARGEST)
        if before is None:
            await self._bucket.delete(place)
            return False
        await self._bucket.write(place, before)
        await self._bucket.delete(place_before)
        return True

    async def _names(self) -> list[str]:
        """Return the names of all manifests of engines."""
        return [each.name for each in await self._bucket.list("engines") if each.name.endswith(".json")]

    async def _manifests(self) -> dict[str, bytes]:
        """Return a mapping from the keys of engines to their manifests, as bytes."""
        names = await self._names()
        read = zip(names, await self._read(names), strict=True)
        return {_key(name): data for name, data in read if data is not None}

    async def _read(self, names: list[str]) -> list[bytes | None]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> bytes | None:
            async with gate:
                return await self._bucket.read(name, manifests.LARGEST)

        return await asyncio.gather(*map(one, names))


def _key(name: str) -> str:
    """Return the key of the engine whose manifest has this name."""
    return name[len("engines/") : -len(".json")]


def _is_unused(item: Item, needed: set[str], now: float) -> bool:
    return _OWN.fullmatch(item.name) is not None and item.name not in needed and now - item.unix_s > _SPARED_S
