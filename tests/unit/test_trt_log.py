"""The runtime's words in one line, and which module and version of it was loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.backends.trt import api
from edged.backends.trt.log import Log, explain, listen
from tests.fake_trt import make

# As TensorRT-RTX 1.7.1.116 and TensorRT 8.6 wrote them.
SAID = {
    "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network must have at least one output. In "
    "validate at /_src/optimizer/api/network.cpp:3810)": "API Usage Error (Network must have at least one output.)",
    "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([tactic.cpp:1676: enumerate_tactics] Tactic Selection: no "
    "tactics to implement the operation within workspace limit. In compileGraph at /_src/x.cpp:2012)": (
        "Myelin (Tactic Selection: no tactics to implement the operation within workspace limit.)"
    ),
    "ModelImporter.cpp:1071: Make sure input index has Int64 binding.": "Make sure input index has Int64 binding.",
    "4: [network.cpp::validate::3062] Error Code 4: Internal Error (Network must have one output)": (
        "Internal Error (Network must have one output)"
    ),
    "plain words": "plain words",
    "": "",
}


@pytest.mark.parametrize("text", SAID)
def test_a_message_loses_the_places_in_the_runtime_s_sources(text: str) -> None:
    log = Log()
    log.hear("ERROR", text)
    assert log.reason() == SAID[text]


def test_the_last_errors_are_told_once_and_without_their_echo() -> None:
    log = Log()
    for text in ("first", "second", "third", "third", "[checkMacros.cpp::catchCudaError::250] Error Code 1: again"):
        log.hear("ERROR", text)
    log.hear("INFO", "chatter")
    log.hear("VERBOSE", "more")
    assert log.reason() == "third"
    log.hear("INTERNAL_ERROR", "fourth\nline")
    assert log.reason() == "third; fourth line"


def test_a_builder_that_never_stops_talking_fills_no_memory() -> None:
    log = Log()
    for number in range(10_000):
        log.hear("ERROR", f"{number} " + "x" * 10_000)
        log.hear("WARNING", f"{number}")
        log.hear("INFO", f"[GpuLayer] {number}")
    assert len(log.errors) == len(log.warnings) == len(log.on_gpu) == 200
    assert len(log.reason()) <= 400
    assert log.reason().startswith("9998 ")


@pytest.mark.parametrize("message", [None, 3, b"\xff", object()])
def test_nothing_that_is_said_raises_into_the_runtime(message: Any) -> None:
    trt, _ = make("10")
    listener: Any = listen(trt, Log())
    listener.log(SimpleNamespace(name="ERROR"), message)
    listener.log(None, "words")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("", "does not say why"),
        ("Cuda Runtime (cudaError 35: CUDA driver version is insufficient)", "no CUDA device can be used here"),
        ("CUDA initialization failure with error: 100", "no CUDA device"),
        ("Requested amount of GPU memory (1 bytes) could not be allocated", "ran out of memory"),
        ("cudaError 3590", "^cudaError 3590$"),
    ],
)
def test_what_to_do_about_a_reason(reason: str, words: str) -> None:
    import re

    assert re.search(words, explain(reason))


# -- which module ---------------------------------------------------------------------------------------------------


def test_the_first_module_there_is_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edged_fake_trt_b.py").write_text("__version__ = '10.13.3.9.post1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = api.load(("edged_fake_trt_a", "edged_fake_trt_b"))
    assert found is sys.modules.pop("edged_fake_trt_b")
    assert api.version(found, "libnone-of-this.so") == "10.13.3.9"


@pytest.mark.parametrize(
    "text", ["import edged_no_such_module", "raise OSError('libnvinfer.so.10: no')", "raise ImportError('x')"]
)
def test_a_module_that_cannot_be_loaded_says_why(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edged_fake_trt_c.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"edged_no_such_module|libnvinfer\.so\.10: no|^x$"):
        api.load(("edged_fake_trt_c", "edged_fake_trt_d"))


def test_no_module_at_all_is_told_by_name() -> None:
    with pytest.raises(ImportError, match="no Python module edged_fake_x or edged_fake_y"):
        api.load(("edged_fake_x", "edged_fake_y"))


def test_a_library_that_is_no_tensorrt_has_no_version_of_it() -> None:
    assert api.version(SimpleNamespace(__version__="10.3.0"), "libc.so") == "10.3.0"  # type: ignore[arg-type]
