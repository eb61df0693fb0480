"""`edged self-check` as an installer runs it: on a sound box, and with a runtime that is wrong or crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edged.doctor.check import Check, Name, Result
from edged.doctor.self_check import Tried

pytestmark = pytest.mark.timeout(400)
# Patches OpenVINO's adapter in each process that imports it: its sessions give answers 5 % too large.
WRONG = """
import importlib.util, sys
class Hook:
    def find_spec(self, name, path, target=None):
        if name != "edged.backends.openvino":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            kind = type(module.BACKEND)
            open_ = kind.open
            def spoiled(self, order):
                session = open_(self, order)
                infer = session.infer
                session.infer = lambda inputs: {name: array * 1.05 for name, array in infer(inputs).items()}
                return session
            kind.open = spoiled
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Hook())
"""


class Printed(msgspec.Struct, forbid_unknown_fields=True):
    ok: bool
    checks: list[Check]
    left_out: list[str]
    engines: list[Tried]

    def of(self, subject: str) -> Check:
        (check,) = (check for check in self.checks if check.subject == subject)
        return check


def self_check(*line: str, site: Path | None = None) -> Printed:
    path = [str(site)] if site else []
    done = subprocess.run(
        [sys.executable, "-m", "edged", "self-check", "--json", *line],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*path, str(Path(__file__).parents[2])])},
    )
    assert done.stderr == ""
    found = msgspec.json.decode(done.stdout, type=Printed)
    assert done.returncode == (0 if found.ok else 1)
    assert all(check.remedy or check.result in (Result.OK, Result.UNKNOWN) for check in found.checks)
    return found


def test_self_check_quick_sound_box_is_ok(tmp_path: Path) -> None:
    found = self_check("--quick")
    assert found.ok
    assert {check.name for check in found.checks} <= {Name.SELF_CHECK, Name.RUNTIME}
    for subject in ("reference", "onnxruntime on cpu", "openvino on cpu"):
        assert found.of(subject).result is Result.OK, found.of(subject)
    assert {(each.runtime, each.accepted, each.speed) for each in found.engines} >= {
        ("onnxruntime", True, None),
        ("openvino", True, None),
    }


def test_self_check_wrong_answers_fail_and_have_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    found = self_check("--quick", site=tmp_path)
    assert not found.ok
    assert found.of("onnxruntime on cpu").result is Result.OK
    check = found.of("openvino on cpu")
    assert (check.result, "wrong answers" in check.message) == (Result.WRONG, True)
    assert "pip install --force-reinstall openvino" in check.remedy


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_self_check_crashing_runtime_fails(tmp_path: Path, runtime: str) -> None:
    (tmp_path / f"{runtime}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
    found = self_check("--quick", site=tmp_path)
    assert not found.ok
    (check,) = (check for check in found.checks if check.result is Result.WRONG)
    assert runtime in check.subject
    assert "SIGSEGV" in check.message


@pytest.mark.long
def test_self_check_times_engines_against_the_reference() -> None:
    found = self_check()
    assert found.ok
    assert all(each.speed and each.throughput and each.frames_per_s for each in found.engines)
