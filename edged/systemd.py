"""The service's side of systemd's protocols (sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3)).

No library is needed, since a message is one datagram with lines NAME=VALUE.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, MutableMapping

_SEND_SECONDS = 1.0
_LONGEST_STATUS = 500  # characters; a longer status is cut, since it is shown on one line
_FIRST_DESCRIPTOR = 3  # the first passed descriptor; the others follow
_MOST_DESCRIPTORS = 1024  # more passed sockets are considered invalid


class Notifier:
    """Reports the service's state to systemd. Without systemd its methods do nothing."""

    def __init__(self, address: str = "") -> None:
        """`address` is as in NOTIFY_SOCKET: a path, or an abstract name that begins with @; empty without systemd."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        # Other kinds of addresses are not supported: a virtual machine's manager may use vsock.
        self.is_usable = self._address.startswith(("/", "\0"))

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notifier:
        """Return the notifier for the address in the environment."""
        return cls(environment.get("NOTIFY_SOCKET", ""))

    def ready(self) -> None:
        """Report that the service is ready, at the start or after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that the service reloads its configuration; call `ready` at the end."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, seconds: float) -> None:
        """Report that the service will stop within `seconds`."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def status(self, line: str) -> None:
        """Set the line that `systemctl status` shows."""
        line = " ".join(line.split())
        self._send(f"STATUS={line if len(line) <= _LONGEST_STATUS else line[: _LONGEST_STATUS - 1] + '…'}")

    def alive(self) -> None:
        """Report progress, which resets the watchdog's timer."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        """Send a message; ignore errors of delivery."""
        if not self.is_usable:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                connection.settimeout(_SEND_SECONDS)
                connection.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the watchdog's timeout in seconds, after which systemd aborts this process; None without a watchdog."""
    named, text = environment.get("WATCHDOG_PID", ""), environment.get("WATCHDOG_USEC", "")
    if (named and named != str(pid)) or not (text.isascii() and text.isdecimal()) or not int(text):
        return None
    return int(text) / 1e6


def passed_descriptors(environment: Mapping[str, str], pid: int) -> list[tuple[int, str]]:
    """Return the sockets that systemd opened for this process, as (descriptor, name from the unit).

    Return an empty list if the sockets are for another process, or if their count is invalid.
    """
    text = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(pid) or not (text.isascii() and text.isdecimal() and len(text) <= 4):
        return []
    count = int(text) if int(text) <= _MOST_DESCRIPTORS else 0
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    names += ["unknown"] * (count - len(names))
    return [(_FIRST_DESCRIPTOR + index, names[index] or "unknown") for index in range(count)]


def forget_descriptors(environment: MutableMapping[str, str]) -> None:
    """Remove the variables of passed sockets, so that children do not use the sockets."""
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"):
        environment.pop(name, None)
