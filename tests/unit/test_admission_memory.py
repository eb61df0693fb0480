"""What admission found out, on disk."""

from __future__ import annotations

import os
from pathlib import Path

from edged.config.limits import AdmissionLimits
from edged.engines.trials import Outcomes, Unread
from edged.models.finding import Category, Finding, Stage
from tests.waiting import ends_despite_fifo


def test_keep_replaces_a_fifo(tmp_path: Path) -> None:
    """To read it, so as not to write the same again, would keep the model from ever being served."""
    outcomes, limits = Outcomes(tmp_path), AdmissionLimits()
    unread = Unread(Finding(Stage.PARSE, Category.TIMED_OUT, "it takes too long"), 1)
    outcomes.keep_unread("graph", limits, unread)
    (place,) = tmp_path.rglob("graph-*.json")
    place.unlink()
    os.mkfifo(place)
    assert ends_despite_fifo(lambda: outcomes.keep_unread("graph", limits, unread), place)
    assert outcomes.unread("graph", limits) == unread
