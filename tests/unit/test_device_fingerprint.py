"""Fingerprints: differences, digests, and the fingerprint of this box."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.device.fingerprint import Change, Fingerprint, devices, probe

BOXES = Path(__file__).parents[1] / "fixtures" / "devices"
REPOSITORY = Path(__file__).parents[2]


def test_probe_of_this_box_is_stable_and_quick() -> None:
    first = probe()
    assert first == probe()
    names = ("cpu.arch", "cpu.isa", "cpu.model", "cpu.threads", "memory.total_mb", "os.kernel", "python.version")
    assert all(first.facts[name] for name in names)
    assert int(first.facts["memory.total_mb"]) > 64
    assert devices(first)[0].name == "cpu"

    def seconds() -> float:
        start = time.perf_counter()
        probe()
        return time.perf_counter() - start

    # The minimum of several runs, so that other load on the machine does not fail the test.
    assert min(seconds() for _ in range(5)) < 0.3


def run_python(program: str, *arguments: str) -> str:
    """Run a program in a new interpreter. Return its standard output."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout.strip()


def test_probe_imports_no_runtime() -> None:
    program = """
import sys
before = set(sys.modules)  # cuda-bindings 12 has a .pth file that imports a part of it in every process
from edged.device import fingerprint, validity
fingerprint.devices(fingerprint.probe())
runtimes = {"onnxruntime", "openvino", "tensorrt", "tensorrt_rtx", "cuda", "numpy", "cv2", "onnx"}
print(sorted(runtimes & {name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    assert run_python(program) == "[]"


@pytest.mark.parametrize("box", ["jetson-orin-nano", "jetson-agx-orin-jp72", "desktop-rtx-4070"])
def test_probe_of_a_recorded_box_reads_only_its_folder_and_runs_no_program(box: str) -> None:
    program = """
import sys
from pathlib import Path
from edged.device.fingerprint import probe
top = Path(sys.argv[1]).resolve()
seen = []
sys.addaudithook(lambda event, arguments: seen.append((event, arguments)))
probe(top)
# fdopen counts as opening a number.
paths = [arguments[0] for event, arguments in seen if event in ("open", "os.listdir", "os.scandir")]
opened = [path for path in paths if not isinstance(path, int)]
print(len(opened) > 10, [path for path in opened if not str(path).startswith(str(top))])
print([event for event, _ in seen if event.startswith(("subprocess", "ctypes", "os.exec", "os.fork"))])
"""
    assert run_python(program, str(BOXES / box)).splitlines() == ["True []", "[]"]


def test_diff_as_text_has_a_line_for_each_change() -> None:
    old = Fingerprint({"a": "1", "b": "1", "d": "1"})
    new = Fingerprint({"d": "1", "c": "1", "b": "2"})
    assert [str(change) for change in old.diff(new)] == ["a: 1 -> absent", "b: 1 -> 2", "c: absent -> 1"]


FACTS = st.dictionaries(st.text("ab.", min_size=1, max_size=3), st.text("xy", min_size=1, max_size=2), max_size=5)


@given(FACTS, FACTS)
def test_diff_applied_to_one_gives_the_other(old: dict[str, str], new: dict[str, str]) -> None:
    changed = dict(old)
    for change in Fingerprint(old).diff(Fingerprint(new)):
        if change.new is None:
            del changed[change.name]
        else:
            changed[change.name] = change.new
    assert changed == new
    back = tuple(Change(c.name, c.new, c.old) for c in Fingerprint(old).diff(Fingerprint(new)))
    assert Fingerprint(new).diff(Fingerprint(old)) == back
    assert (Fingerprint(old).digest == Fingerprint(new).digest) == (old == new)


def test_fingerprint_is_sorted_and_survives_json() -> None:
    one, other = Fingerprint({"a": "1", "b": "2"}), Fingerprint({"b": "2", "a": "1"})
    assert one == other
    assert list(other.facts) == ["a", "b"]
    assert msgspec.json.decode(msgspec.json.encode(one), type=Fingerprint) == one
