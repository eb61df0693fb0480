"""The calls that edged makes exist in the Python bindings of every TensorRT generation, with the expected signatures.

`EDGED_TENSORRT_BINDINGS` names folders that pip filled with `--target`, as `make test-tensorrt` does. The bindings are
real, the libraries beneath them are stubs: nothing can be built.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from edged.backends.trt import api
from tests.integration.tensorrt_stubs import Bindings, has_compiler

FOLDERS = [
    Path(folder)
    for folder in os.environ.get("EDGED_TENSORRT_BINDINGS", "").split(os.pathsep)
    if folder and Path(folder, "tensorrt_bindings").is_dir()
]
pytestmark = [
    pytest.mark.skipif(not FOLDERS, reason="EDGED_TENSORRT_BINDINGS names no folder; see `make test-tensorrt`"),
    pytest.mark.skipif(not has_compiler(), reason="no C compiler for the stub libraries"),
]

# Protocol of edged -> class of the bindings that it describes.
CLASSES: dict[type, str] = {
    api.Tensor: "ITensor",
    api.Layer: "ILayer",
    api.Network: "INetworkDefinition",
    api.ParserError: "ParserError",
    api.Parser: "OnnxParser",
    api.TimingCache: "ITimingCache",
    api.OptimizationProfile: "IOptimizationProfile",
    api.Config: "IBuilderConfig",
    api.Builder: "Builder",
    api.Inspector: "EngineInspector",
    api.Engine: "ICudaEngine",
    api.Runtime: "Runtime",
    api.Context: "IExecutionContext",
}
# Names that the adapter looks up, because some generations lack them -> the generations that have them.
OPTIONAL = {
    "BuilderFlag.FP16": "not modern",
    "BuilderFlag.INT8": "not modern",
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": "not modern",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": "not old",
    "IProgressMonitor": "not old",
    "ComputeCapability": "rtx",
    "ComputeCapability.CURRENT": "rtx",
    "IRuntimeCache": "rtx",
    "EngineInvalidityDiagnostics": "rtx",
}
LOOK = """
def find(path):
    found = trt
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
def first(path):
    words = (getattr(find(path), "__doc__", None) or "").strip().splitlines()
    overloads = [word.split(". ", 1)[1] for word in words if word[:1].isdigit() and "(self" in word]
    return overloads or words[:1]
"""


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def bindings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bindings:
    return Bindings(request.param, tmp_path_factory.mktemp("bindings"))


def calls() -> dict[str, int | None]:
    """Return `IBuilderConfig.set_flag` -> number of arguments that edged passes; None for an attribute."""
    found: dict[str, int | None] = {}
    for protocol, name in CLASSES.items():
        for member, value in vars(protocol).items():
            if inspect.isfunction(value) and not member.startswith("_"):
                found[f"{name}.{member}"] = len(inspect.signature(value).parameters) - 1
            elif isinstance(value, property):
                found[f"{name}.{member}"] = None
        found |= {f"{name}.{member}": None for member in vars(protocol).get("__annotations__", {})}
    return found


def names() -> set[str]:
    """Return every dotted name that the adapter looks up in a module."""
    folder = Path(inspect.getfile(api)).parent
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_ask = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "find"
            if is_ask and isinstance(node.args[0], ast.Name) and node.args[0].id == "trt":  # type: ignore[attr-defined]
                output = node.args[1]  # type: ignore[attr-defined]
                if isinstance(output, ast.Constant):
                    found.add(str(output.value))
    return found | {"BuilderFlag.FP16", "BuilderFlag.INT8", "ComputeCapability.CURRENT"}  # composed in the adapter


def test_conformance_covers_every_name_of_the_adapter() -> None:
    assert len(calls()) > 45
    assert {"MemoryPoolType.WORKSPACE", "BuilderFlag.TF32", "IProgressMonitor"} <= names()
    assert set(OPTIONAL) <= names()


def test_every_call_exists_with_as_many_arguments(bindings: Bindings) -> None:
    output = bindings.ask(
        f"{LOOK}\nanswer = {{p: first(p) if find(p) is not None else None for p in {list(calls())!r}}}"
    )
    absent = [path for path in calls() if output[path] is None]
    assert absent == []
    wrong, compared = {}, 0
    for path, count in calls().items():
        signatures = [line for line in output[path] if "(self" in line]  # type: ignore[attr-defined]
        if count is None or not signatures:
            continue
        compared += 1
        if not any(_takes(line, count) for line in signatures):
            wrong[path] = signatures
    assert wrong == {}
    assert compared > 20


def test_every_looked_up_name_exists_in_its_generations(bindings: Bindings) -> None:
    output = bindings.ask(f"{LOOK}\nanswer = {{p: find(p) is not None for p in {sorted(names())!r}}}")
    old = not output["NetworkDefinitionCreationFlag.STRONGLY_TYPED"]
    modern = not output["NetworkDefinitionCreationFlag.EXPLICIT_BATCH"]
    expected = {"not modern": not modern, "not old": not old, "rtx": False}
    wanted = {path: expected[OPTIONAL[path]] if path in OPTIONAL else True for path in names()}
    assert output == wanted


def test_weakly_typed_network_takes_a_precision(bindings: Bindings) -> None:
    output = bindings.ask(
        f"{LOOK}\nanswer = {{p: find(p) is not None for p in "
        "('NetworkDefinitionCreationFlag.STRONGLY_TYPED', 'BuilderFlag.FP16', 'BuilderFlag.INT8')}"
    )
    typed, fp16, int8 = output.values()
    assert typed or (fp16 and int8)


def test_newer_parsers_name_the_node_and_have_a_progress_monitor(bindings: Bindings) -> None:
    output = bindings.ask(
        f"""{LOOK}
answer = {{p: find(p) is not None for p in (
    "ParserError.node_name", "ParserError.node_operator", "IProgressMonitor", "IBuilderConfig.progress_monitor",
    "IProgressMonitor.phase_start", "IProgressMonitor.step_complete", "IProgressMonitor.phase_finish")}}"""
    )
    assert len(set(output.values())) == 1


def test_only_rtx_can_build_for_another_device(bindings: Bindings) -> None:
    output = bindings.ask(
        f"{LOOK}\nanswer = {{p: find(p) is not None for p in ('IBuilderConfig.set_compute_capability',)}}"
    )
    assert output == {"IBuilderConfig.set_compute_capability": False}


def test_engine_profiling_detail_can_be_disabled(bindings: Bindings) -> None:
    paths = ("IExecutionContext.nvtx_verbosity", "ProfilingVerbosity.NONE")
    assert all(bindings.ask(f"{LOOK}\nanswer = {{p: find(p) is not None for p in {paths}}}").values())


def test_datatypes_and_severities_have_the_adapters_names(bindings: Bindings) -> None:
    output = bindings.ask("answer = {'names': list(trt.DataType.__members__)}")
    known: Any = output["names"]
    lacking = set(api.DATATYPES) - set(known)
    assert lacking <= {"INT64", "BF16"}  # the oldest generation lacks these
    severities = bindings.ask("answer = {'names': list(trt.ILogger.Severity.__members__)}")["names"]
    assert {"ERROR", "INTERNAL_ERROR", "WARNING", "INFO"} <= set(severities)  # type: ignore[call-overload]


def test_logger_and_monitor_are_accepted_and_a_failed_builder_is_one_line(bindings: Bindings) -> None:
    answer = bindings.ask(
        """
from edged.backends.trt.log import Log, listen
from edged.backends.trt.network import create_builder
from edged.backends.trt.progress import Progress, watch
from edged.errors import EngineUnusable
trt.init_libnvinfer_plugins = None
log = Log()
listener = listen(trt, log)
listener.log(trt.ILogger.Severity.ERROR, "heard")
monitor = watch(trt, Progress([].append))
if monitor is not None:
    monitor.phase_start("all", None, 2)
    assert monitor.step_complete("all", 0)
    monitor.phase_finish("all")
answer = {"heard": log.reason(), "is_logger": isinstance(listener, trt.ILogger)}
try:
    create_builder(trt, log, "TensorRT")
except EngineUnusable as error:
    answer["said"] = str(error)
"""
    )
    assert answer == {"heard": "heard", "is_logger": True, "said": "TensorRT cannot start here: heard"}


def test_tensorrt_version_is_read_without_its_library(bindings: Bindings) -> None:
    answer = bindings.ask(
        """
from edged.backends.trt import api
answer = {"version": api.version(trt, "libnvinfer.so"), "module": trt.__version__}
"""
    )
    assert re.fullmatch(r"\d+(\.\d+){2,3}", str(answer["version"]))
    assert str(answer["module"]).startswith(str(answer["version"]))


def _takes(signature: str, count: int) -> bool:
    """Return True if `name(self: X, a: int, b: str = '') -> None` accepts `count` arguments."""
    inside = signature[signature.index("(") + 1 : signature.rindex(")")] if ")" in signature else signature
    depth, arguments, current = 0, [], ""
    for letter in inside:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            arguments.append(current)
            current = ""
        else:
            current += letter
    arguments.append(current)
    given = [argument for argument in arguments if not argument.strip().startswith("self")]
    needed = [argument for argument in given if "=" not in argument]
    return len(needed) <= count <= len(given)


def test_takes_counts_required_and_optional_arguments() -> None:
    taken = [_takes("f(self: A, a: Tuple[int, str], b: int = 3) -> bool", count) for count in range(4)]
    assert taken == [False, True, True, False]
