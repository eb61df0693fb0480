"""Lets one client call several daemons, with gRPC's own load balancing and health checks
(https://github.com/grpc/proposal: A17 health checks, A42 ring hash, A76 hash of a header).

Calls go to the healthy daemons in turn. A hash of the camera's name selects the daemon for the camera's stream. As long
as this daemon is healthy, a camera that connects again reaches this daemon, which still has the camera's tracks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
from collections.abc import Sequence
from typing import TypeAlias

from edged.client import address
from edged.client.address import TLS, UNIX
from edged.errors import InvalidInput

HEADER = "edged-camera"
Options: TypeAlias = tuple[tuple[str, str], ...]


def _options(policy: dict[str, object]) -> Options:
    config = {"loadBalancingConfig": [policy], "healthCheckConfig": {"serviceName": ""}}
    return (("grpc.service_config", json.dumps(config)),)


# Without this variable gRPC ignores the header. gRPC reads it when the first channel with this policy is opened.
os.environ.setdefault("GRPC_EXPERIMENTAL_RING_HASH_SET_REQUEST_HASH_KEY", "true")
IN_TURN = _options({"round_robin": {}})
BY_CAMERA = _options({"ring_hash_experimental": {"requestHashHeader": HEADER}})


def resolve(targets: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return gRPC targets of several daemons. Raises InvalidInput if `targets` is empty, if only some of them use TLS,
    or if one of several is a unix socket."""
    found = tuple(dict.fromkeys(map(address.resolve, targets)))
    if not found:
        raise InvalidInput("the list of daemons is empty; give HOST:PORT of each daemon")
    if len(found) > 1 and any(each.startswith(UNIX) for each in found):
        raise InvalidInput("a list of daemons cannot have unix sockets; give HOST:PORT of each daemon")
    if len({each.startswith(TLS) for each in found}) > 1:
        raise InvalidInput(
            "only some of the daemons have tls: in front of their address; give tls: for all or for none"
        )
    return found


def together(targets: tuple[str, ...]) -> str:
    """Return one gRPC target for several daemons. Host names are resolved now, since gRPC accepts only IP addresses in
    a list.

    Raises InvalidInput if a name is unknown, or if some daemons have IPv4 addresses and others only IPv6.
    """
    found: dict[str, None] = {}
    families = set()
    for target in targets:
        host, port = address.host_of(target), target.rpartition(":")[2]
        ip = _ip(host)
        families.add(ip.version)
        found[f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"] = None
    if len(families) > 1:
        raise InvalidInput("some of the daemons have only IPv4 addresses, others only IPv6; give addresses of one kind")
    return f"ipv{families.pop()}:{','.join(found)}"


def key_of(camera: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata by which gRPC selects a camera's daemon. The value is a hash of the camera's name, since
    headers can have only ASCII."""
    return ((HEADER, hashlib.sha256(camera.encode()).hexdigest()[:16]),)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInput(f"the host name {host} cannot be resolved: {error.strerror or error}") from None
    addresses = [ipaddress.ip_address(info[4][0]) for info in infos]
    return next((each for each in addresses if each.version == 4), addresses[0])
