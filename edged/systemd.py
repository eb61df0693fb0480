"""What a service tells systemd and hears from it (sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3)). Elsewhere
nothing is sent.

The protocol is lines of NAME=VALUE in one datagram, so no library is needed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, MutableMapping

_SEND_SECONDS = 1.0
_LONGEST_STATUS = 500  # characters; what is longer is cut, since it is read on one line
_FIRST_DESCRIPTOR = 3  # of those that are passed, which follow each other
_MOST_DESCRIPTORS = 1024  # what says more is nonsense


class Notifier:
    """Tells systemd how the service is; where none listens, every method does nothing."""

    def __init__(self, address: str = "") -> None:
        """`address` as in NOTIFY_SOCKET: a path, or a name that begins with @; empty where there is no systemd."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_usable = self._address.startswith(("/", "\0"))  # a machine's own manager may listen on vsock instead

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notifier:
        """As the environment of the service names it."""
        return cls(environment.get("NOTIFY_SOCKET", ""))

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return self._is_usable

    def ready(self) -> None:
        """The service answers; also after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` is the end of it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, seconds: float) -> None:
        """The service leaves, and needs so many seconds for it at most."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def status(self, line: str) -> None:
        """What `systemctl status` shows; one line."""
        line = " ".join(line.split())
        self._send(f"STATUS={line if len(line) <= _LONGEST_STATUS else line[: _LONGEST_STATUS - 1] + '…'}")

    def alive(self) -> None:
        """The service makes progress: the watchdog waits anew."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        """What cannot be delivered is lost: a service must not stop because nobody listens to it."""
        if not self._is_usable:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way:
                way.settimeout(_SEND_SECONDS)
                way.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """How long systemd waits for a sign of life of this process before it aborts it; None where it does not watch."""
    named, text = environment.get("WATCHDOG_PID", ""), environment.get("WATCHDOG_USEC", "")
    if (named and named != str(pid)) or not (text.isascii() and text.isdecimal()) or not int(text):
        return None
    return int(text) / 1e6


def passed_descriptors(environment: Mapping[str, str], pid: int) -> list[tuple[int, str]]:
    """The sockets that systemd opened for this process, by descriptor, with the name that their unit gives them. None
    where they are another process's, or the count is no number."""
    text = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(pid) or not (text.isascii() and text.isdecimal() and len(text) <= 4):
        return []
    count = int(text) if int(text) <= _MOST_DESCRIPTORS else 0
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    names += ["unknown"] * (count - len(names))
    return [(_FIRST_DESCRIPTOR + index, names[index] or "unknown") for index in range(count)]


def forget_descriptors(environment: MutableMapping[str, str]) -> None:
    """No child takes them for its own."""
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"):
        environment.pop(name, None)
