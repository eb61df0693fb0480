"""What signals mean to the daemon: which end it, and which have it read its configuration again.

SIGTERM, SIGINT   leave in order; once more, leave at once
SIGHUP            read the configuration again, as services do; but leave in order where it says that the terminal, from
                  which the daemon was started, has gone. Under nohup it never means that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

_LOG = logging.getLogger("edged")
_STOPPING = (signal.SIGTERM, signal.SIGINT)


def has_terminal() -> bool:
    """Whether this process has a terminal. After a hang-up its session cannot open it any more (tty(4), ENXIO)."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Signals:
    """Listens from when it is made, in the running loop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()  # set when the daemon is to leave
        self.reload = asyncio.Event()  # set to request a reload; the reloader clears it
        self._loop = asyncio.get_running_loop()
        # If SIGHUP was ignored, as by nohup, the daemon outlives the terminal.
        self._had_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._leave, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        if self._had_terminal and not has_terminal():
            self._leave(signal.SIGHUP)
        else:
            self.reload.set()

    def _leave(self, number: signal.Signals) -> None:
        _LOG.info("%s: finishing requests in flight, then stopping; a second signal stops at once", number.name)
        self.stop.set()
        for each in (*_STOPPING, signal.SIGHUP):
            self._loop.remove_signal_handler(each)
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the configuration no longer matters
