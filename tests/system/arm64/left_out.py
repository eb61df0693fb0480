"""Tests that an emulated processor cannot pass, each with its reason. Everything else runs."""

from __future__ import annotations

# By node id: of a test, or of one of its cases.
LEFT_OUT: dict[str, str] = {
    "tests/unit/test_build_watch.py::test_a_process_is_read_as_it_is": (
        "QEMU writes /proc/self/stat itself, with processor times of 0"
    ),
    "tests/unit/test_process.py::test_a_restrained_process_yields_in_everything": (
        "QEMU does not pass RLIMIT_DATA on, which would limit itself"
    ),
    "tests/unit/test_process.py::test_every_thread_of_a_build_child_yields": (
        "QEMU has a thread of its own from the start, which does not yield"
    ),
}


def reason(node: str) -> str:
    """Why a test is left out; empty when it is not."""
    return LEFT_OUT.get(node, "") or LEFT_OUT.get(node.partition("[")[0], "")
