"""Which clients may use the shared memory of this machine, and what it is to them."""

from __future__ import annotations

from edged.errors import Refused
from edged.ingress.inference.parameters import Place
from edged.ingress.inference.regions import Region, Regions, RegionSource
from edged.ingress.inference.tensors import Locate
from edged.ingress.shared_memory import is_local


class Access:
    """The regions as a client sees them: those on the daemon's unix socket always, others where it is allowed.

    Whoever can use regions can read and write whatever the daemon can below /dev/shm, which the permissions of a socket
    file guard and a port does not.
    """

    def __init__(self, regions: Regions, over_tcp: bool = False) -> None:
        self._regions, self.over_tcp = regions, over_tcp

    def regions(self, peer: str) -> Regions:
        """Refused for a client that may not use them."""
        if peer.startswith("unix:") or (self.over_tcp and is_local(peer)):
            return self._regions
        hint = "use the unix socket" if self.over_tcp else "use it, or set allow_shared_memory_over_tcp = true"
        raise Refused(f"shared memory is for clients on the daemon's unix socket; {hint}")

    def locate(self, peer: str) -> Locate:
        """Finds inputs of such a client."""

        def source(place: Place, tensor: str) -> RegionSource:
            return self.regions(peer).source(place, tensor)

        return source

    def target(self, peer: str, place: Place, tensor: str) -> Region:
        """The region that an output of such a client goes to."""
        return self.regions(peer).target(place, tensor)
