"""Makes this process's loggers as the configuration says, and again when it says something else."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from edged.logs.options import LogOptions
from edged.logs.output import Output

_OURS = "edged"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOG = logging.getLogger(_OURS)


def start(options: LogOptions | None = None) -> Output:
    """For a process that is the daemon: everything that anybody logs in it goes to its standard error, in one form."""
    output = Output()
    logging.basicConfig(handlers=[output], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    heed(options or LogOptions())
    return output


def heed(options: LogOptions) -> None:
    """Puts options in force; a process whose log is not ours keeps its form."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, Output):
            handler.shape(options.format)
    # Libraries tell of every step at lower levels: what edged says of itself is what is asked for.
    root.setLevel(max(_LEVELS[options.level], logging.INFO))
    _LOG.setLevel(_LEVELS[options.level])


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is SystemExit:
        return
    error: tuple[type[BaseException], BaseException, TracebackType | None] | None = None
    if failed.exc_value is not None:
        error = failed.exc_type, failed.exc_value, failed.exc_traceback
    name = failed.thread.name if failed.thread is not None else "without a name"
    _LOG.error("the thread %s ended with an unexpected error", name, exc_info=error)
