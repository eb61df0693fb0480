"""Triton's `perf_analyzer` against a daemon: `python -m tests.system.perf_analyzer` (`make test-perf-analyzer`)."""

from __future__ import annotations


class Unavailable(Exception):
    """This machine cannot run it; the message is a one-line reason."""
