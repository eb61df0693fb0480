"""Resolves references. The configuration may name a model by a reference instead of a path. A reference is a URL such
as https://... or hf://... A thread fetches the models that are not on this box, while the daemon serves the other
models. After each fetched model, the daemon reloads its configuration."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import msgspec

from edged.backoff import Backoff
from edged.config import Config
from edged.daemon import locations
from edged.errors import EdgedError
from edged.references import kept

_LOG = logging.getLogger("edged")
_PAUSES_S = (5.0, 5.0, 10.0, 60.0, 600.0, 3600.0)  # pauses between attempts


class Fetcher:
    """Resolves references and fetches their files. Use it from one thread at a time."""

    def __init__(self) -> None:
        self._state = Path()
        self._wanted: dict[str, str] = {}  # references that are to be fetched, by the name of the model
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()  # set when the configuration was read again

    def resolve(self, config: Config) -> Config:
        """Return the configuration with a path for each model that is given as a reference. If the model is not on this
        box yet, no file exists at the path, and `start` fetches the model.

        Raises InvalidInput for a reference that cannot be used.
        """
        state, models, wanted = locations.state_dir(config), {}, {}
        for name, text in config.models.items():
            path, is_kept = kept.place_of(text, state)
            models[name] = str(path)
            if not is_kept:
                wanted[name] = text
        self._state, self._wanted = state, wanted
        return msgspec.structs.replace(config, models=models)

    def start(self) -> None:
        """Start a thread that fetches the missing files. After each file, the thread sends SIGHUP to this process, so
        install the handler of SIGHUP first."""
        self._woken.set()
        if self._wanted and self._thread is None:
            self._thread = threading.Thread(target=self._fetch, name="fetcher", daemon=True)
            self._thread.start()

    def _fetch(self) -> None:
        backoff = Backoff(_PAUSES_S)
        while True:
            self._woken.clear()
            for name, text in list(self._wanted.items()):
                _LOG.info("model %s: fetching it", name)
                try:
                    kept.local(text, self._state)
                except EdgedError as error:
                    _LOG.error("model %s cannot be fetched: %s; edged tries again", name, error)
                    kept.keep_problem(text, self._state, f"its files cannot be fetched: {error}; edged tries again")
                except Exception:  # the other models must be fetched
                    _LOG.exception("model %s cannot be fetched", name)
                else:
                    wanted = self._wanted  # `resolve` may replace it in another thread
                    if wanted.get(name) == text:  # the configuration may name another file now
                        del wanted[name]
                    os.kill(os.getpid(), signal.SIGHUP)
            if self._woken.wait(backoff.after(0.0) if self._wanted else None):
                backoff = Backoff(_PAUSES_S)
