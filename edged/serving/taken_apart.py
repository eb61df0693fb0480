"""Whose fault it was that a batch failed: the batch's, or that of something in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class TakenApart:
    """The parts of a failed batch, each tried alone. If all of them go well, the engine does not take them together:
    `blame` is called. One that fails alone too would have failed any batch, which says nothing against batches; nor
    does one whose client left before it was tried."""

    def __init__(self, parts: int, blame: Callable[[], None]) -> None:
        self._open, self._blame = parts, blame
        self._is_acquitted = False

    def heed(self, outcome: asyncio.Future[Any]) -> None:
        """What became of a part; a callback of its future."""
        self._is_acquitted = self._is_acquitted or outcome.cancelled() or outcome.exception() is not None
        self._open -= 1
        if not self._open and not self._is_acquitted:
            self._blame()
