"""System shared memory that clients register. CUDA shared memory is not supported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from edged import shared_layout
from edged.api.auth import identity
from edged.api.auth.identity import ANYONE, Identity
from edged.api.endpoints.shared_memory import LARGEST_OFFSET, SharedObject, is_local
from edged.api.grpc.rpc import Context
from edged.api.inference.requests import Locate, Place, RequestedOutput
from edged.errors import AlreadyExists, InvalidInput, NotFound, Overloaded, Refused, Unsupported
from edged.proto import open_inference_pb2 as pb

_MOST_REGIONS = 1024  # limit of regions of one client; each region keeps a file open
_MOST_OF_ALL = 4096  # limit of regions of all clients together


class Region:
    """A registered part of a shared memory object: `size` bytes from `offset`."""

    def __init__(self, name: str, key: str, offset: int, size: int, folder: Path, client: Identity) -> None:
        """Raises InvalidInput for a missing or too small object, or if `client` itself could not open the object."""
        self.name, self.key, self.offset, self.size = name, key, offset, size
        self._object = SharedObject(folder, key.removeprefix("/"), client, InvalidInput, for_writing=True)
        self.is_writable = self._object.is_writable
        self.require(Place(name, 0, size), "")

    def require(self, place: Place, tensor: str) -> None:
        """Raise InvalidInput if a place is outside the region, or if the object has become too short."""
        what = f"{tensor}: " if tensor else ""
        if place.offset > self.size or place.size > self.size - place.offset:
            raise InvalidInput(
                f"{what}{place.size} bytes at {place.offset} are outside shared memory {self.name[:60]!r},"
                f" which has {self.size} bytes"
            )
        length = self._object.length()
        if self.offset + place.offset + place.size > length:
            raise InvalidInput(
                f"{what}shared memory {self.name[:60]!r} ends at byte {self.offset + self.size} of {self.key[:60]!r},"
                f" which has only {length} bytes; enlarge the object first"
            )

    def read_into(self, memory: memoryview, position: int) -> None:
        """Fill `memory` from a position in the region. Raises InvalidInput if the object cannot be read that far."""
        if problem := self._object.read(memory, self.offset + position):
            raise InvalidInput(f"shared memory {self.name[:60]!r} {problem}")

    def write(self, contents: memoryview, place: Place, tensor: str) -> None:
        """Write an output to its place. Raises InvalidInput if the place is too small or cannot be written."""
        if len(contents) > place.size:
            raise InvalidInput(
                f"{tensor} has {len(contents)} bytes, but its place in shared memory {self.name[:60]!r} has"
                f" {place.size}; make it larger"
            )
        if not self.is_writable:
            raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} is read-only; make it writable")
        self.require(place, tensor)  # a write beyond the end would enlarge the object
        if problem := self._object.write(contents, self.offset + place.offset):
            raise InvalidInput(f"{tensor}: shared memory {self.name[:60]!r} {problem}")


class RegionSource:
    """An input in a region, as a `work.Source`. The input is read once, when the request leaves the queue."""

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
        """Register a region. Raises AlreadyExists if the name is in use, InvalidInput if the object is unusable or
        `client` itself could not open it, or Overloaded if there are too many regions."""
        if not name:
            raise InvalidInput("the region of shared memory has no name; give the region a name")
        if name in self._regions:
            raise AlreadyExists(f"shared memory {name[:60]!r} is already registered; unregister it first")
        if not size or offset > LARGEST_OFFSET or size > LARGEST_OFFSET:
            raise InvalidInput(
                f"shared memory {name[:60]!r} has size {size} and offset {offset}; the size must be at least 1 byte,"
                f" and both at most {LARGEST_OFFSET} bytes"
            )
        if len(self._regions) >= _MOST_REGIONS:
            raise Overloaded(
                f"this client has {_MOST_REGIONS} regions of shared memory, the maximum; unregister some first"
            )
        self._regions[name] = Region(name, key, offset, size, self._folder, client)

    def unregister(self, name: str) -> None:
        """Forget a region, or all regions if the name is empty. An unknown region is not an error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def find(self, name: str) -> Region:
        """Return a region by its name. Raises NotFound if no such region is registered."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"shared memory {name[:60]!r} is not registered; register it first")
        return region

    def listed(self, name: str = "") -> Sequence[Region]:
        """Return one region, or all regions if the name is empty. Raises NotFound."""
        return [self.find(name)] if name else list(self._regions.values())

    def target(self, place: Place, tensor: str) -> Region:
        """Return the region of a place, after a check that the place fits. Raises NotFound or InvalidInput."""
        region = self.find(place.region)
        region.require(place, tensor)
        return region


class SharedMemoryAccess:
    """The regions of all clients on a unix socket of the daemon, and with `over_tcp` also of clients on loopback.

    Clients are distinguished by `identity.namespace`, not by connection. So a client can use its regions on any of its
    connections.
    """

    def __init__(self, folder: Path = shared_layout.FOLDER, over_tcp: bool = False) -> None:
        self._folder, self.over_tcp = folder, over_tcp
        self._regions: dict[str, Regions] = {}

    def regions(self, peer: str) -> Regions:
        """Return the regions of the current call's client. Raises Refused if the client may not use shared memory."""
        if peer.startswith("unix:") or (self.over_tcp and is_local(peer)):
            return self._regions.get(identity.namespace(peer)) or Regions(self._folder)
        hint = "use that socket" if self.over_tcp else "use that socket, or set allow_shared_memory_over_tcp = true"
        raise Refused(f"shared memory is for clients on the daemon's unix socket; {hint}")

    def register(self, peer: str, name: str, key: str, offset: int, size: int) -> None:
        """Register a region of a client. Raises AlreadyExists, InvalidInput, Overloaded or Refused."""
        regions = self.regions(peer)
        self._regions = {client: each for client, each in self._regions.items() if len(each)}
        if sum(map(len, self._regions.values())) >= _MOST_OF_ALL:
            raise Overloaded(
                f"all clients together have {_MOST_OF_ALL} regions of shared memory, the maximum; unregister some first"
            )
        regions.register(name, key, offset, size, identity.current(peer))
        self._regions[identity.namespace(peer)] = regions

    def locate(self, peer: str) -> Locate:
        """Return a function that finds a client's inputs in its regions."""
        return lambda place, tensor: RegionSource(self.target(peer, place, tensor), place)

    def target(self, peer: str, place: Place, tensor: str) -> Region:
        """Return the region of a place in a client's memory. Raises NotFound, InvalidInput or Refused."""
        return self.regions(peer).target(place, tensor)

    def targets(self, peer: str, wanted: Iterable[RequestedOutput]) -> dict[str, Region]:
        """Return the region of each output that a client requests in shared memory, by the output's name. Raises
        NotFound, InvalidInput or Refused."""
        places = ((each.name, each.place) for each in wanted if each.place is not None)
        return {name: self.target(peer, place, f"output {name!r}") for name, place in places}

    # -- calls --------------------------------------------------------------------------------------------------------

    async def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Return one region of the client, or all if the name is empty. Raises NotFound or Refused."""
        response = pb.SystemSharedMemoryStatusResponse()
        for each in self.regions(context.peer).listed(request.name):
            status = response.regions[each.name]
            status.name, status.key, status.offset, status.byte_size = each.name, each.key, each.offset, each.size
        return response

    async def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Register a region of the client. Raises AlreadyExists, InvalidInput, Overloaded or Refused."""
        self.register(context.peer, request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Unregister one region of the client, or all if the name is empty; an unknown region is not an error.

        Raises Refused.
        """
        self.regions(context.peer).unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_shared_memory_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise Unsupported("CUDA shared memory is not supported; register system shared memory")

    async def cuda_shared_memory_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Succeed without effect: clients call this before and after their work, even if they use no CUDA memory."""
        return pb.CudaSharedMemoryUnregisterResponse()
