"""The calls that register shared memory: the system's, and CUDA's, which a device of this kind does not have."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from edged import shared_layout
from edged.api.auth import identity
from edged.api.auth.identity import ANYONE, WRITE, Identity
from edged.api.endpoints.shared_memory import fill, is_local, problem_of, why_unopened
from edged.api.grpc.rpc import Context, Service
from edged.api.inference.requests import Locate, Place
from edged.errors import AlreadyExists, InvalidInput, NotFound, Overloaded, Refused, Unsupported
from edged.proto import open_inference_pb2 as pb

_MOST_REGIONS = 1024  # each holds a file open
_LARGEST_OFFSET = 1 << 62
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Region:
    """A registered part of a shared memory object: `size` bytes from `offset`."""

    def __init__(self, name: str, key: str, offset: int, size: int, folder: Path, client: Identity) -> None:
        """InvalidInput if the object is missing or smaller, or if the client that registers it could not open it."""
        self.name, self.key, self.offset, self.size = name, key, offset, size
        self._descriptor, self.is_writable = _opened(folder, key, client)
        weakref.finalize(self, os.close, self._descriptor)
        self.require(Place(name, 0, size), "")

    def require(self, place: Place, tensor: str) -> None:
        """InvalidInput where a place is not in the region, or the object is shorter than its region by now."""
        what = f"{tensor}: " if tensor else ""
        if place.offset > self.size or place.size > self.size - place.offset:
            raise InvalidInput(
                f"{what}{place.size} bytes at {place.offset} are not in shared memory {self.name[:60]!r},"
                f" which has {self.size}"
            )
        length = os.fstat(self._descriptor).st_size
        if self.offset + place.offset + place.size > length:
            raise InvalidInput(
                f"{what}shared memory {self.name[:60]!r} goes to byte {self.offset + self.size} of {self.key[:60]!r},"
                f" which has {length}; make it that large first"
            )

    def read_into(self, memory: memoryview, position: int) -> None:
        """Fills `memory` from a position in the region; InvalidInput where it was cut off meanwhile."""
        problem = fill(self._descriptor, memory, self.offset + position)
        if problem:
            raise InvalidInput(f"shared memory {self.name[:60]!r} {problem}")

    def write(self, contents: memoryview, place: Place, tensor: str) -> None:
        """Writes an output to its place; InvalidInput where that is too small or cannot be written."""
        if len(contents) > place.size:
            raise InvalidInput(
                f"{tensor} has {len(contents)} bytes, its place in shared memory {self.name[:60]!r} {place.size};"
                " make it larger"
            )
        if not self.is_writable:
            raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} may only be read")
        self.require(place, tensor)  # writing behind the end would make the object longer
        done = 0
        while done < len(contents):
            try:
                done += os.pwritev(self._descriptor, [contents[done:]], self.offset + place.offset + done)
            except OSError as error:
                reason = f"cannot be written: {error.strerror}"
                raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} {reason}") from None


class RegionSource:
    """An input in a region, read once when its request is chosen: a `work.Source`."""

    __slots__ = ("_place", "_region")

    def __init__(self, region: Region, place: Place) -> None:
        self._region, self._place = region, place

    @property
    def size(self) -> int:
        return self._place.size

    def read_into(self, place: memoryview) -> None:
        self._region.read_into(place, self._place.offset)


class Regions:
    """The regions that one client registered."""

    def __init__(self, folder: Path = shared_layout.FOLDER) -> None:
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, name: str, key: str, offset: int, size: int, client: Identity = ANYONE) -> None:
        """AlreadyExists for a name that is taken; InvalidInput for what cannot be used, or what the client could not
        open itself; Overloaded for too many."""
        if not name:
            raise InvalidInput("the region of shared memory has no name; give it one")
        if name in self._regions:
            raise AlreadyExists(f"shared memory {name[:60]!r} is registered already; unregister it first")
        if not size or offset > _LARGEST_OFFSET or size > _LARGEST_OFFSET:
            raise InvalidInput(
                f"shared memory {name[:60]!r} has {size} bytes at {offset}, which is no part of an object"
            )
        if len(self._regions) >= _MOST_REGIONS:
            raise Overloaded(f"{_MOST_REGIONS} regions of shared memory are registered; unregister some first")
        self._regions[name] = Region(name, key, offset, size, self._folder, client)

    def unregister(self, name: str) -> None:
        """Forgets a region, with an empty name all; one that is not there is forgotten already."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def find(self, name: str) -> Region:
        """NotFound for one that is not registered."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"there is no shared memory {name[:60]!r}; register it first")
        return region

    def listed(self, name: str = "") -> Sequence[Region]:
        """One region, or all of them. NotFound."""
        return [self.find(name)] if name else list(self._regions.values())

    def source(self, place: Place, tensor: str) -> RegionSource:
        """An input that lies in a region, checked as far as it can be before its turn."""
        region = self.find(place.region)
        region.require(place, tensor)
        return RegionSource(region, place)

    def target(self, place: Place, tensor: str) -> Region:
        """The region that an output goes to, checked likewise."""
        region = self.find(place.region)
        region.require(place, tensor)
        return region


def _opened(folder: Path, key: str, client: Identity) -> tuple[int, bool]:
    """The descriptor of an object, and whether it may be written."""
    name = key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", "..") or len(os.fsencode(name)) > 255:
        raise InvalidInput(f"{key[:80]!r} is no shared memory object: its name has no / but the first")
    try:
        descriptor, is_writable = os.open(folder / name, os.O_RDWR | _FLAGS), True
    except PermissionError:
        try:
            descriptor, is_writable = os.open(folder / name, os.O_RDONLY | _FLAGS), False
        except OSError as error:
            raise _unopened(key, error) from None
    except OSError as error:
        raise _unopened(key, error) from None
    status = os.fstat(descriptor)
    problem = problem_of(status, client)
    if problem:
        os.close(descriptor)
        raise InvalidInput(f"shared memory {key[:80]!r} {problem}")
    return descriptor, is_writable and client.may(status, WRITE)


def _unopened(key: str, error: OSError) -> InvalidInput:
    return InvalidInput(f"shared memory {key[:80]!r} cannot be opened: {why_unopened(error)}")


_MOST_OF_ALL = 4096  # of all clients; each holds a file open


class SharedMemoryAccess:
    """Every client's own regions: of those on a unix socket of the daemon, and of others if that is allowed.

    Clients are told apart by `identity.namespace`, so that one which registers on one connection can use the region on
    another.
    """

    def __init__(self, folder: Path = shared_layout.FOLDER, over_tcp: bool = False) -> None:
        self._folder, self.over_tcp = folder, over_tcp
        self._regions: dict[str, Regions] = {}

    def regions(self, peer: str) -> Regions:
        """Those of the client that makes the current call. Refused if it may not use any."""
        if peer.startswith("unix:") or (self.over_tcp and is_local(peer)):
            return self._regions.get(identity.namespace(peer)) or Regions(self._folder)
        hint = "use the unix socket" if self.over_tcp else "use it, or set allow_shared_memory_over_tcp = true"
        raise Refused(f"shared memory is for clients on the daemon's unix socket; {hint}")

    def register(self, peer: str, name: str, key: str, offset: int, size: int) -> None:
        """AlreadyExists, InvalidInput, Overloaded, Refused."""
        regions = self.regions(peer)
        self._regions = {client: each for client, each in self._regions.items() if len(each)}
        if sum(map(len, self._regions.values())) >= _MOST_OF_ALL:
            raise Overloaded(f"{_MOST_OF_ALL} regions of shared memory are registered; unregister some first")
        regions.register(name, key, offset, size, identity.current(peer))
        self._regions[identity.namespace(peer)] = regions

    def locate(self, peer: str) -> Locate:
        """Finds inputs of such a client."""

        def source(place: Place, tensor: str) -> RegionSource:
            return self.regions(peer).source(place, tensor)

        return source

    def target(self, peer: str, place: Place, tensor: str) -> Region:
        """The region that an output of such a client goes to."""
        return self.regions(peer).target(place, tensor)


class SharedMemoryHandlers:
    """Registers, tells and forgets regions."""

    def __init__(self, access: SharedMemoryAccess) -> None:
        self._access = access

    def register(self, service: Service) -> None:
        service.unary("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest, self.status)
        service.unary("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest, self.register_region)
        service.unary("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest, self.unregister)
        service.unary("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest, self.cuda_status)
        service.unary("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest, self.cuda_register)
        service.unary("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest, self.cuda_unregister)

    async def status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """One region, or with an empty name all of the client's. NotFound, Refused."""
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._access.regions(context.peer).listed(request.name):
            told = response.regions[region.name]
            told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.size
        return response

    async def register_region(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """AlreadyExists, InvalidInput, Overloaded, Refused."""
        self._access.register(context.peer, request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """One region, or with an empty name all of the client's; a region that does not exist is no error. Refused."""
        self._access.regions(context.peer).unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise Unsupported("memory of a GPU cannot be shared between processes here; register system shared memory")

    async def cuda_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """There is none to forget: clients ask before and after, whichever memory they use."""
        return pb.CudaSharedMemoryUnregisterResponse()
