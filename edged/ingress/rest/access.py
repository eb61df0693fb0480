"""Who may ask. The one place where a request's access is decided, before anything of it is looked at.

The listener is for this machine, and so are its users; but a browser on this machine carries requests of any web page.
Such a page says where it is from (`Origin`), or has its own name lead here (`Host`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping


def refusal(headers: Mapping[str, str], peer: str) -> str | None:
    """Why a request is refused, in one line; None where it is not. `peer` is the client as gRPC names it."""
    host = headers.get("host", "")
    if not peer.startswith("unix:") and host and not _is_here(host):
        return f"host {host[:80]!r} is not a name of this machine's loopback; ask localhost"
    origin = headers.get("origin")
    if origin is not None and (not host or origin.partition("://")[2] != host):
        return "requests of web pages from elsewhere are refused; ask from a program, or without Origin"
    return None


def _is_here(host: str) -> bool:
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    if name.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
