"""The runner's part on the aarch64 machine, a pytest plugin: leaves tests out, lengthens waits, counts outcomes.

As a program it prints the machine and the relevant versions.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections import Counter
from pathlib import Path

import pytest

from tests.system.arm64 import patience
from tests.system.arm64.left_out import reason

REPORT = "EDGED_ARM64_REPORT"  # the file for the counts
PATIENCE = "EDGED_ARM64_PATIENCE"  # factor for the time limits of tests
NAMED = "EDGED_ARM64_NAMED"  # 1 if the user named the tests, to run slow ones as well
_TOLD = ("onnxruntime", "openvino", "numpy", "grpcio", "protobuf", "pyzmq", "opencv-python-headless", "av", "onnx")


class _Count:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.failures: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        why = {item: reason(item.nodeid, os.environ[NAMED] == "1") for item in items}
        left_out = [item for item in items if why[item]]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not why[item]]
        self.outcomes["left out"] = len(left_out)
        self.reasons.update(f"left out: {why[item]}" for item in left_out)
        for item in items:
            patience.lengthen_limit(item, _factor())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.outcomes["skipped"] += 1
            if isinstance(report.longrepr, tuple):
                self.reasons[f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"] += 1
        elif report.failed:
            self.outcomes["failed"] += 1
            self.failures.append(report.nodeid)
        elif report.when == "call":
            self.outcomes["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["failed"] += 1
            self.failures.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        reported = {"counts": self.outcomes, "reasons": self.reasons, "failures": self.failures}
        Path(os.environ[REPORT]).write_text(json.dumps(reported))


def _factor() -> float:
    return float(os.environ[PATIENCE])


def pytest_configure(config: pytest.Config) -> None:
    patience.lengthen_waits(_factor())
    config.pluginmanager.register(_Count())


def facts() -> list[str]:
    release = platform.freedesktop_os_release()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _TOLD]
    return [
        f"{platform.machine()}, {release['PRETTY_NAME']}, glibc {platform.libc_ver()[1]}, "
        f"Python {platform.python_version()}",
        f"edged {importlib.metadata.version('edged')}, {', '.join(versions)}",
    ]


if __name__ == "__main__":
    print(*facts(), sep="\n")
