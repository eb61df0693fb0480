"""Which clients may use the shared memory of this machine, and whose regions each of them sees."""

from __future__ import annotations

from pathlib import Path

from edged import shared_layout
from edged.api.auth import identity
from edged.api.endpoints.shared_memory import is_local
from edged.api.inference.parameters import Place
from edged.api.inference.regions import Region, Regions, RegionSource
from edged.api.inference.tensors import Locate
from edged.errors import Overloaded, Refused

_MOST_REGIONS = 4096  # of all clients; each holds a file open


class Access:
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
        if sum(map(len, self._regions.values())) >= _MOST_REGIONS:
            raise Overloaded(f"{_MOST_REGIONS} regions of shared memory are registered; unregister some first")
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
