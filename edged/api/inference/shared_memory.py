"""Shared memory that clients register: the system's, and CUDA's, which a device of this kind does not have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edged import shared_layout
from edged.api.auth import identity
from edged.api.auth.identity import ANYONE, Identity
from edged.api.endpoints.shared_memory import LARGEST_OFFSET, SharedObject, is_local
from edged.api.grpc.rpc import Context
from edged.api.inference.requests import Locate, Place
from edged.errors import AlreadyExists, InvalidInput, NotFound, Overloaded, Refused, Unsupported
from edged.proto import open_inference_pb2 as pb

_MOST_REGIONS = 1024  # of one client; each holds a file open
_MOST_OF_ALL = 4096  # of all clients


class Region:
    """A registered part of a shared memory object: `size` bytes from `offset`."""

    def __init__(self, name: str, key: str, offset: int, size: int, folder: Path, client: Identity) -> None:
        """InvalidInput if the object is missing or smaller, or if the client that registers it could not open it."""
        self.name, self.key, self.offset, self.size = name, key, offset, size
        self._object = SharedObject(folder, key.removeprefix("/"), client, InvalidInput, for_writing=True)
        self.is_writable = self._object.is_writable
        self.require(Place(name, 0, size), "")

    def require(self, place: Place, tensor: str) -> None:
        """InvalidInput if a place is outside the region, or if the object has become shorter than the region."""
        what = f"{tensor}: " if tensor else ""
        if place.offset > self.size or place.size > self.size - place.offset:
            raise InvalidInput(
                f"{what}{place.size} bytes at {place.offset} are not in shared memory {self.name[:60]!r},"
                f" which has {self.size}"
            )
        length = self._object.length()
        if self.offset + place.offset + place.size > length:
            raise InvalidInput(
                f"{what}shared memory {self.name[:60]!r} goes to byte {self.offset + self.size} of {self.key[:60]!r},"
                f" which has {length}; make it that large first"
            )

    def read_into(self, memory: memoryview, position: int) -> None:
        """Fill `memory` from a position in the region. InvalidInput if the object was cut off."""
        if problem := self._object.read(memory, self.offset + position):
            raise InvalidInput(f"shared memory {self.name[:60]!r} {problem}")

    def write(self, contents: memoryview, place: Place, tensor: str) -> None:
        """Write an output to its place. InvalidInput if that is too small or cannot be written."""
        if len(contents) > place.size:
            raise InvalidInput(
                f"{tensor} has {len(contents)} bytes, its place in shared memory {self.name[:60]!r} {place.size};"
                " make it larger"
            )
        if not self.is_writable:
            raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} may only be read")
        self.require(place, tensor)  # writing behind the end would make the object longer
        if problem := self._object.write(contents, self.offset + place.offset):
            raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} {problem}")


class RegionSource:
    """An input in a region, read once when its request is chosen: a `work.Source`."""

    __slots__ = ("_place", "_region", "size")

    def __init__(self, region: Region, place: Place) -> None:
        self._region, self._place, self.size = region, place, place.size

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
        """AlreadyExists for a name in use; InvalidInput for an object that cannot be used, or that the client could not
        open itself; Overloaded for too many."""
        if not name:
            raise InvalidInput("the region of shared memory has no name; give it one")
        if name in self._regions:
            raise AlreadyExists(f"shared memory {name[:60]!r} is registered already; unregister it first")
        if not size or offset > LARGEST_OFFSET or size > LARGEST_OFFSET:
            raise InvalidInput(f"shared memory {name[:60]!r}: {size} bytes at {offset} are not part of an object")
        if len(self._regions) >= _MOST_REGIONS:
            raise Overloaded(f"{_MOST_REGIONS} regions of shared memory are registered; unregister some first")
        self._regions[name] = Region(name, key, offset, size, self._folder, client)

    def unregister(self, name: str) -> None:
        """Forget a region, with an empty name all. A region that does not exist is no error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def find(self, name: str) -> Region:
        """NotFound if it is not registered."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"shared memory {name[:60]!r} is not registered; register it first")
        return region

    def listed(self, name: str = "") -> Sequence[Region]:
        """One region, or all of them. NotFound."""
        return [self.find(name)] if name else list(self._regions.values())

    def target(self, place: Place, tensor: str) -> Region:
        """The region of a place, checked as far as possible before the tensor's turn. NotFound, InvalidInput."""
        region = self.find(place.region)
        region.require(place, tensor)
        return region


class SharedMemoryAccess:
    """The regions of every client on a unix socket of the daemon, and of other clients if that is allowed.

    `identity.namespace` distinguishes clients, so that a client can use its region on any of its connections.
    """

    def __init__(self, folder: Path = shared_layout.FOLDER, over_tcp: bool = False) -> None:
        self._folder, self.over_tcp = folder, over_tcp
        self._regions: dict[str, Regions] = {}

    def regions(self, peer: str) -> Regions:
        """The regions of the client that makes the current call. Refused if it may not use any."""
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
        """A function that finds inputs of a client."""
        return lambda place, tensor: RegionSource(self.target(peer, place, tensor), place)

    def target(self, peer: str, place: Place, tensor: str) -> Region:
        """The region of a place in a client's memory. NotFound, InvalidInput, Refused."""
        return self.regions(peer).target(place, tensor)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """One region, or with an empty name all of the client's. NotFound, Refused."""
        response = pb.SystemSharedMemoryStatusResponse()
        for each in self.regions(context.peer).listed(request.name):
            status = response.regions[each.name]
            status.name, status.key, status.offset, status.byte_size = each.name, each.key, each.offset, each.size
        return response

    async def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """AlreadyExists, InvalidInput, Overloaded, Refused."""
        self.register(context.peer, request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """One region, or with an empty name all of the client's; a region that does not exist is no error. Refused."""
        self.regions(context.peer).unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_shared_memory_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise Unsupported("memory of a GPU cannot be shared between processes here; register system shared memory")

    async def cuda_shared_memory_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Succeed without effect: clients call this before and after, whichever memory they use."""
        return pb.CudaSharedMemoryUnregisterResponse()
