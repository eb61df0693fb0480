"""`edged report` as a user runs it. The host's name, the user and the home must not appear in the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edged.doctor import box_report
from tools import verified

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(400)
HOST = "garage-box-7"


def report(*line: str, within: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*within, sys.executable, "-m", "edged", "report", *line],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


@pytest.mark.long
def test_report_of_a_box_is_shown_written_and_added(tmp_path: Path) -> None:
    home, file, page = tmp_path / "ada lovelace", tmp_path / "report.md", tmp_path / "VERIFIED.md"
    home.mkdir()
    named = ("unshare", "-ru", "sh", "-c", f'hostname {HOST} && exec "$@"', "sh")
    if subprocess.run([*named, "true"], capture_output=True, check=False).returncode:
        pytest.skip("new namespaces are not permitted here")
    where = {"HOME": str(home), "EDGED_STATE": str(home / "models of ada"), "EDGED_CACHE": str(home / "cache")}
    done = report("-o", str(file), "--yes", "--by", "Ada L.", within=named, **where)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert done.stdout == text
    for secret in (HOST, str(home), "lovelace", "models of ada"):
        assert secret not in text
    found = box_report.read(text)
    assert {"onnxruntime", "openvino"} <= {engine.runtime for engine in found.engines}
    assert all(engine.speed for engine in found.engines)
    page.write_text((ROOT / "jetson" / "VERIFIED.md").read_text())
    if not found.failures:  # this machine may have failures
        assert verified.main([str(file)], page) == 0
        assert page.read_text().count(f"| {found.day} |") >= 2


def test_report_asks_before_it_writes(tmp_path: Path) -> None:
    for line in (("-o", str(tmp_path / "f")), ("--yes",), ("--by", "| me |")):
        done = report(*line)
        assert (done.returncode, done.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []
