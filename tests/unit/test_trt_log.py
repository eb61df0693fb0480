"""Messages of the runtime in one line, and the module and version that are loaded."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.backends.trt import api
from edged.backends.trt.log import Log, explain, listen
from tests.fake_trt import make

# Messages of TensorRT-RTX 1.7.1.116 and TensorRT 8.6, with the reasons that are reported.
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
def test_reason_leaves_out_places_in_the_runtimes_sources(text: str) -> None:
    log = Log()
    log.hear("ERROR", text)
    assert log.reason() == SAID[text]


def test_reason_has_the_last_errors_once() -> None:
    log = Log()
    for text in ("first", "second", "third", "third", "[checkMacros.cpp::catchCudaError::250] Error Code 1: again"):
        log.hear("ERROR", text)
    log.hear("INFO", "chatter")
    log.hear("VERBOSE", "more")
    assert log.reason() == "third"
    log.hear("INTERNAL_ERROR", "fourth\nline")
    assert log.reason() == "third; fourth line"


def test_log_is_bounded() -> None:
    log = Log()
    for number in range(10_000):
        log.hear("ERROR", f"{number} " + "x" * 10_000)
        log.hear("WARNING", f"{number}")
        log.hear("INFO", f"[GpuLayer] {number}")
    assert len(log.errors) == len(log.warnings) == len(log.on_gpu) == 200
    assert len(log.reason()) <= 400
    assert log.reason().startswith("9998 ")


@pytest.mark.parametrize("message", [None, 3, b"\xff", object()])
def test_listen_invalid_messages_raise_nothing(message: Any) -> None:
    trt, _ = make("10")
    listener: Any = listen(trt, Log())
    listener.log(SimpleNamespace(name="ERROR"), message)
    listener.log(None, "words")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("", "gives no reason"),
        ("Cuda Runtime (cudaError 35: CUDA driver version is insufficient)", "no CUDA device can be used here"),
        ("CUDA initialization failure with error: 100", "no CUDA device"),
        ("Requested amount of GPU memory (1 bytes) could not be allocated", "ran out of memory"),
        ("cudaError 3590", "^cudaError 3590$"),
    ],
)
def test_explain_adds_a_remedy(reason: str, words: str) -> None:
    assert re.search(words, explain(reason))


# -- modules --------------------------------------------------------------------------------------------------------


def test_load_imports_the_first_module_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edged_fake_trt_b.py").write_text("__version__ = '10.13.3.9.post1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = api.load(("edged_fake_trt_a", "edged_fake_trt_b"))
    assert found is sys.modules.pop("edged_fake_trt_b")
    assert api.version(found, "libnone-of-this.so") == "10.13.3.9"


@pytest.mark.parametrize(
    "text", ["import edged_no_such_module", "raise OSError('libnvinfer.so.10: no')", "raise ImportError('x')"]
)
def test_load_module_that_fails_is_an_import_error(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edged_fake_trt_c.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"edged_no_such_module|libnvinfer\.so\.10: no|^x$"):
        api.load(("edged_fake_trt_c", "edged_fake_trt_d"))


def test_load_without_a_module_names_them() -> None:
    with pytest.raises(ImportError, match="no Python module edged_fake_x or edged_fake_y"):
        api.load(("edged_fake_x", "edged_fake_y"))


def test_version_without_its_library_is_that_of_the_package() -> None:
    assert api.version(SimpleNamespace(__version__="10.3.0"), "libc.so") == "10.3.0"  # type: ignore[arg-type]
