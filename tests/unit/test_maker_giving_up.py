"""Which failures are worth another try."""

from __future__ import annotations

import pytest

from edged.engines.child import ChildLost
from edged.engines.maker import reason_to_give_up
from edged.errors import BuildFailed, EdgedError, EngineUnusable, OutOfMemory, OutOfSpace

HANG = "build child got no further for 120 s and was stopped"
CASES: dict[str, tuple[EdgedError, str, str, list[str], str]] = {
    "first failure": (EngineUnusable("no kernel"), "openvino", "", [], ""),
    "another failure": (EngineUnusable("no kernel"), "openvino", HANG, [], ""),
    "the same again": (EngineUnusable("no kernel"), "openvino", "no kernel", [], "alike"),
    "the same with other numbers": (
        EngineUnusable("node 'a_17' at /tmp/x: 12.5 MB"),
        "onnxruntime",
        "node 'b' at /var/y: 3 MB",
        [],
        "alike",
    ),
    "a hang again": (ChildLost(HANG, "late"), "openvino", HANG.replace("120", "180"), [], "alike"),
    "a crash again": (ChildLost("was killed by SIGSEGV", "crashed"), "openvino", "was killed by SIGSEGV", [], "alike"),
    "killed from outside again": (ChildLost("was killed", "killed"), "openvino", "was killed", [], ""),
    "too large again": (ChildLost("used more than 5 MiB", "too large"), "openvino", "used more than 5 MiB", [], ""),
    "no memory again": (OutOfMemory("no memory"), "onnxruntime", "no memory", [], ""),
    "no process again": (BuildFailed("could not be started"), "openvino", "could not be started", [], ""),
    "full disk again": (OutOfSpace("full"), "openvino", "full", [], ""),
    "less effort may help": (EngineUnusable("no tactic"), "tensorrt", "no tactic", [], ""),
    "another precision": (ChildLost(HANG, "late"), "openvino", "", [HANG], "as in another precision"),
    "another precision of TensorRT": (EngineUnusable("no op"), "tensorrt", "", ["no op"], "as in another precision"),
    "another precision failed otherwise": (EngineUnusable("no bf16"), "openvino", "", [HANG], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_why_gives_up_only_what_would_end_alike(case: str) -> None:
    error, backend, before, kin, expected = CASES[case]
    assert reason_to_give_up(error, backend, before, kin) == expected
