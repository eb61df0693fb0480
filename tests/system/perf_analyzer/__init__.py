"""Triton's `perf_analyzer` against a daemon: `python -m tests.system.perf_analyzer` (`make test-perf-analyzer`)."""

from __future__ import annotations


class Unavailable(Exception):
    """This machine cannot do it; one line that says why."""
