"""Doctor: checks of runtimes, the daemon, and models with their engines."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edged.api_types import AlarmInfo, Composition, DeviceInfo, EngineInfo, ModelInfo, StatusInfo, Verdict
from edged.backends import one_node
from edged.config import Engines
from edged.device.fingerprint import Fingerprint
from edged.device.root import Root
from edged.doctor import daemon, models, runtimes
from edged.doctor.check import Check, Result
from edged.engines.admission import Admission
from edged.errors import EngineUnusable, NotReady, Unsupported
from edged.ipc import job_messages as jobs
from edged.jobs import runtimes as asked
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import ExternalFile
from edged.models.model import Model
from edged.serving.host_process import HOST_MODULE
from edged.verification.standard import TOLERANCES
from edged.verification.verify import NO_VALUES
from edged.version import __version__
from tests import ensemble_files
from tests.unit.control_room import entry, inspection
from tests.unit.test_doctor_box import lines

ORT = jobs.LoadedRuntime("1.23.2", 23, 11, ("CPUExecutionProvider",))
ANY = jobs.LoadedRuntime("2026.4", jobs.LoadedRuntime.ANY, jobs.LoadedRuntime.ANY)
CPU_ONLY = {"runtime.onnxruntime": "1.23.2"}
ORIN = {"gpu.0.name": "Orin", "gpu.0.compute_capability": "8.7", "jetson.l4t": "36.4.4"}
WITH_TENSORRT = {"runtime.tensorrt": "10.3.0", "tensorrt.version": "10.3.0.30"}
WHEEL = {"runtime.onnxruntime_gpu": "1.31.1", "runtime.onnxruntime_gpu_code": "sm_89 sm_90a sm_120a sm_121a"}
WITH_GPU = CPU_ONLY | {"gpu.0.name": "Orin"}


# -- runtimes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opset", "ir_version"), [(13, 7), (20, 10), (300, 70000)])
def test_relu_is_a_valid_model(opset: int, ir_version: int) -> None:
    proto = onnx.ModelProto.FromString(one_node.relu(opset, ir_version))
    assert (proto.opset_import[0].version, proto.ir_version) == (opset, ir_version)
    assert (proto.graph.node[0].op_type, list(proto.graph.node[0].input)) == ("Relu", ["x"])
    if opset < 30:
        onnx.checker.check_model(proto, full_check=True)
        given = np.array([[-1, 0, 1, 2]], np.float32)
        (answer,) = ort.InferenceSession(one_node.relu(opset, ir_version)).run(None, {"x": given})
        assert answer.tolist() == [[0, 0, 1, 2]]


def test_load_finds_the_limits_of_a_runtime() -> None:
    found = asked.load(jobs.LoadRuntime("onnxruntime"))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.InferenceSession(one_node.relu(found.opset, found.ir_version), options)
    for beyond in (one_node.relu(found.opset + 1, 7), one_node.relu(13, found.ir_version + 1)):
        with pytest.raises(Exception, match=r"(?i)opset|ir.version"):
            ort.InferenceSession(beyond, options)
    assert (found.version, found.talks) == (ort.__version__, "")
    assert "AzureExecutionProvider" not in found.providers


@pytest.mark.parametrize(("limit", "found"), [(0, (0, 0)), (10**9, (jobs.LoadedRuntime.ANY, jobs.LoadedRuntime.ANY))])
def test_load_runtime_that_accepts_all_or_no_models(
    monkeypatch: pytest.MonkeyPatch, limit: int, found: tuple[int, int]
) -> None:
    class Runtime:
        def version(self) -> str:
            return "1"

        def check(self, model: Path) -> None:
            proto = onnx.ModelProto.FromString(model.read_bytes())
            if max(proto.opset_import[0].version, proto.ir_version) > limit:
                raise EngineUnusable("it is too new")

    monkeypatch.setattr("edged.jobs.runtimes.registry.load", lambda name: Runtime())
    loaded = asked.load(jobs.LoadRuntime("null"))
    assert (loaded.opset, loaded.ir_version) == found


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_try_provider_does_not_fall_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="built without NoneExecutionProvider"):
        asked.try_provider(jobs.TryProvider("NoneExecutionProvider"))
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has the CUDA provider")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(Exception, match=r"libonnxruntime_providers_cuda\.so cannot be loaded"):
        asked.try_provider(jobs.TryProvider("CUDAExecutionProvider"))
    assert asked.try_provider(jobs.TryProvider("CPUExecutionProvider")) == jobs.Done()


def test_import_package_missing_says_why() -> None:
    assert asked.import_package(jobs.ImportPackage(("json",))) == jobs.Done()
    with pytest.raises(Unsupported, match=r"^nonesuch cannot be imported: ModuleNotFoundError: "):
        asked.import_package(jobs.ImportPackage(("json", "nonesuch")))


@pytest.mark.parametrize(
    ("packaged", "loaded", "expected"),
    [
        ("1.23.2", ORT, "1.23.2 loads | ok onnxruntime: the runtime supports opset up to 23 and IR version up to 11"),
        ("1.22.0", ORT, "wrong onnxruntime: version 1.23.2 loads, but version 1.22.0 is installed"),
        ("2026.4", ANY, "the runtime supports any opset and any IR version"),
        ("1", jobs.LoadedRuntime("1", 0, 0), "wrong onnxruntime: the runtime rejects"),
        ("1", jobs.LoadedRuntime("1", 9, 9, (), "the variable is 0"), "warning onnxruntime: the runtime may send"),
    ],
)
def test_loaded_runtime_check_of_version_limits_and_telemetry_has_its_result(
    packaged: str, loaded: jobs.LoadedRuntime, expected: str
) -> None:
    assert expected in lines(runtimes.loaded_runtime("onnxruntime", packaged, loaded))


BROKEN = CPU_ONLY | {"runtime.openvino": "1", "runtime.tensorrt_rtx": "1"}
CUDA = "CUDAExecutionProvider"
MEDIA = runtimes.Extra("media", ("av", "nonesuch.inner"), "files")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (runtimes.broken_runtime("onnxruntime", "1", "no", BROKEN), "wrong onnxruntime: version 1 is installed"),
        (runtimes.broken_runtime("onnxruntime", None, "no", BROKEN), "wrong onnxruntime: the runtime is not installed"),
        (runtimes.broken_runtime("openvino", "1", "no", BROKEN), "wrong openvino: "),
        (runtimes.broken_runtime("tensorrt_rtx", "1", "no", BROKEN), "warning tensorrt_rtx: "),  # this box has no GPU
        (runtimes.provider(CUDA, "", {}), f"ok {CUDA}: "),
        (
            runtimes.provider(CUDA, "no libcudnn", CPU_ONLY),
            f"warning {CUDA}: ONNX Runtime lists the provider but cannot use it: no",
        ),
        (runtimes.provider(CUDA, "no libcudnn", WITH_GPU), f"wrong {CUDA}: "),
        (runtimes.provider("CPUExecutionProvider", "it answers 7", {}), "wrong CPUExecutionProvider: "),
        (runtimes.extra(MEDIA, None), "unknown media"),
        (runtimes.extra(MEDIA, ""), "ok media"),
        (runtimes.extra(MEDIA, "libx is missing"), "wrong media"),
    ],
)
def test_runtime_check_of_a_refusal_is_wrong_only_if_the_box_needs_it(found: Check, expected: str) -> None:
    assert lines([found]).startswith(expected)


def test_broken_tensorrt_of_a_jetson_comes_from_jetpack_not_from_pip() -> None:
    jetson = WITH_GPU | WITH_TENSORRT | {"jetson.l4t": "36.4.0"}
    remedy = runtimes.broken_runtime("tensorrt", "10.3.0", "no", jetson).remedy
    assert "nvidia-jetpack" in remedy
    assert "pip" not in remedy
    assert "pip" in runtimes.broken_runtime("tensorrt", "10.3.0", "no", WITH_GPU | WITH_TENSORRT).remedy


def test_extra_missing_names_the_package_that_is_not_installed() -> None:
    assert "nonesuch.inner" in MEDIA.missing


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CPU_ONLY | {"runtime.onnxruntime_gpu": "1.23.2"}, "warning packages: onnxruntime, onnxruntime-gpu are all"),
        (WITH_GPU, "warning packages: this onnxruntime supports only the CPU"),
        (CPU_ONLY, ""),
        (CPU_ONLY | ORIN, "warning packages: this onnxruntime supports only the CPU"),
        (CPU_ONLY | ORIN | WITH_TENSORRT, "ok packages: onnxruntime is the right package for a Jetson"),
        (WHEEL | ORIN, "warning packages: onnxruntime-gpu 1.31.1 cannot use "),
        (WHEEL | WITH_GPU | {"gpu.0.compute_capability": "8.9"}, "warning packages: onnxruntime, onnxruntime-gpu are"),
        (WHEEL | {"gpu.0.name": "L4", "gpu.0.compute_capability": "8.9"}, ""),
    ],
)
def test_runtime_packages_check_of_conflicts_has_its_result(facts: dict[str, str], expected: str) -> None:
    assert lines(runtimes.runtime_packages(facts)).startswith(expected)


def test_runtime_packages_names_the_right_one_for_the_box() -> None:
    (jetson,) = runtimes.runtime_packages(WHEEL | ORIN)
    assert "uninstall onnxruntime-gpu" in jetson.remedy
    assert jetson.remedy.endswith("install JetPack's TensorRT: sudo apt install nvidia-jetpack")
    (ready,) = runtimes.runtime_packages(WHEEL | ORIN | WITH_TENSORRT)
    assert ready.remedy.endswith("TensorRT is already installed")
    (server,) = runtimes.runtime_packages(WHEEL | {"gpu.0.name": "A100", "gpu.0.compute_capability": "8.0"})
    assert "pip install tensorrt cuda-bindings" in server.remedy
    found = runtimes.provider("CUDAExecutionProvider", "no kernel image is available", WHEEL | ORIN)
    assert (found.result, found.remedy) == (Result.WARNING, jetson.remedy)


@pytest.mark.parametrize(
    ("opset", "ir_version", "loaded", "expected"),
    [
        (
            20,
            10,
            {"onnxruntime": ORT, "openvino": ANY},
            "ok m: the model has opset 20, IR version 10, supported by onnxruntime, openvino",
        ),
        (
            24,
            10,
            {"onnxruntime": ORT},
            "wrong m: the model has opset 24, IR version 10, but onnxruntime supports only opset up to 23",
        ),
        (
            20,
            12,
            {"onnxruntime": ORT},
            "wrong m: the model has opset 20, IR version 12, but onnxruntime supports only IR version up",
        ),
        (24, 10, {"openvino": ORT}, "warning m: the model has opset 24"),
        (24, 10, {}, "unknown m: "),
    ],
)
def test_model_opset_check_against_runtimes_has_its_result(
    opset: int, ir_version: int, loaded: dict[str, jobs.LoadedRuntime], expected: str
) -> None:
    assert lines(runtimes.model_opset("m", opset, ir_version, loaded)).startswith(expected)


# -- daemon ---------------------------------------------------------------------------------------------------------


def info(name: str = "m", state: str = "ready", backend: str = "openvino", reason: str = "") -> ModelInfo:
    return ModelInfo(name, "1", "d", state, reason, "", "k" * 32 if backend else "", backend, (), (), {}, 0)


def reported(*alarms: AlarmInfo, version: str = __version__, paused: str = "") -> daemon.DaemonState:
    status = StatusInfo(version, "e", 1.0, 1, 1, 1, 1, 0, 1 << 30, paused, (), alarms)
    return daemon.DaemonState(status, (info(),), (), DeviceInfo({}, ""))


def test_status_of_a_healthy_daemon_is_ok() -> None:
    assert {check.result for check in daemon.status(reported(), "unix:/s")} == {Result.OK}


def test_status_reports_another_version_a_pause_and_an_alarm() -> None:
    alarm = AlarmInfo("slow", "inference takes 9 ms", "m", "k" * 32, 1.0)
    found = lines(daemon.status(reported(alarm, version="9.9", paused="the disk is full"), "unix:/s"))
    assert "warning : the daemon has version 9.9, but this program" in found
    assert "wrong unix:/s: the disk is full" in found
    assert f"wrong slow m {'k' * 12}: inference takes 9 ms" in found


@pytest.mark.parametrize(
    ("socket_exists", "refusal", "is_named", "expected"),
    [
        (False, "No such file or directory", True, Result.WRONG),
        (False, "No such file or directory", False, Result.UNKNOWN),
        (True, "Connection refused", False, Result.WRONG),
        (True, "Permission denied", False, Result.UNKNOWN),
        (True, "Permission denied", True, Result.WRONG),
    ],
)
def test_silence_of_a_daemon_that_should_run_is_wrong(
    socket_exists: bool, refusal: str, is_named: bool, expected: Result
) -> None:
    known = daemon.Socket("/s", socket_exists, refusal=refusal)
    found = daemon.silence("unix:/s", NotReady("no answer"), known, is_named=is_named)
    assert (found.result, "join the socket's group" in found.remedy) == (expected, refusal == "Permission denied")


def test_socket_listener_and_permissions(tmp_path: Path) -> None:
    assert daemon.Socket.of("localhost:8001") is None
    place = tmp_path / "s"
    assert daemon.Socket.of(f"unix:{place}") == daemon.Socket(str(place), False, refusal="No such file or directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(place))
        dead = daemon.Socket.of(f"unix:{place}")
        assert dead is not None
        assert dead.refusal == "Connection refused"
        server.listen()
        found = daemon.Socket.of(f"unix:{place}")
    assert found is not None
    assert (found.pid, found.refusal) == (os.getpid(), "")
    assert daemon.connections(found, "").result is Result.OK  # pytest's folders are private to the user
    tmp_path.chmod(0o755)
    place.chmod(0o666)
    anyone = msgspec.structs.replace(found, mode=place.stat().st_mode)
    assert daemon.connections(anyone, "").result is Result.WARNING
    assert daemon.connections(None, "host:1").result is Result.UNKNOWN
    assert daemon.connections(daemon.Socket("/s", True, 0o100644), "").result is Result.WRONG
    assert daemon.connections(dead, "").result is Result.WRONG
    forbidden = daemon.Socket("/s", True, 0o140660, refusal="Permission denied")
    assert daemon.connections(forbidden, "").result is Result.UNKNOWN


def test_find_hosts_counts_children_by_backend(tmp_path: Path) -> None:
    for pid, line in (
        (7, "edged\0serve\0"),
        (8, f"python\0-m\0{HOST_MODULE}\x007\0openvino\0ipc://a\x005\0"),
        (9, f"-m\0{HOST_MODULE}\x0070\0openvino\0x\0"),
    ):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cmdline").write_text(line)
    assert daemon.find_hosts(Root(tmp_path), 7) == {"openvino": 1}
    assert daemon.find_hosts(Root(tmp_path), 6) is None


def test_hosts_check_without_a_host_of_a_serving_backend_is_wrong() -> None:
    served = [info("a"), info("b"), info("c", "refused", ""), info("d", backend="onnxruntime")]
    found = lines(daemon.hosts({"openvino": 1}, served))
    wrong = "no engine host of onnxruntime runs, but these models need one: d"
    assert found == f"ok openvino: engine hosts running: 1, for a, b | wrong onnxruntime: {wrong}"
    chats = msgspec.structs.replace(info("e", backend="openvino_genai"), family="language model (llama)")
    assert lines(daemon.hosts({"openvino": 1}, [info("a"), chats])) == "ok openvino: engine hosts running: 1, for a"
    assert lines(daemon.hosts(None, served)).startswith("unknown")
    assert lines(daemon.hosts({}, [info("c", "refused", "")])).startswith("ok")


def test_facts_check_of_different_facts_is_a_warning() -> None:
    here = Fingerprint({"a": "1", "b": "2", "c": "3"})
    assert daemon.facts(DeviceInfo(here.facts, ""), here).result is Result.OK
    found = daemon.facts(DeviceInfo({}, ""), here)
    assert (found.result, "a: absent -> 1; b: absent -> 2 and 1 more" in found.message) == (Result.WARNING, True)


# -- models and engines ---------------------------------------------------------------------------------------------


def engine(state: str = "ready", level: str = "all", reason: str = "", **more: Any) -> EngineInfo:
    made = EngineInfo(
        key=f"{state}{level}".ljust(32, "0"),
        model="m",
        backend="onnxruntime",
        precision="fp32",
        state=state,
        reason=reason,
        parts={"recipe.optimization": level},
        latency_ms=5.0,
        reference_ms=10.0,
        bytes=1,
        created_unix_s=1.0,
        build_s=1.0,
        device="cpu",
        verdict=Verdict(True, "", {}),
    )
    return msgspec.structs.replace(made, **more)


REFERENCE = engine(level="none", latency_ms=10.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([REFERENCE, engine("serving")], "ok m: engine servingall00 (onnxruntime fp32 at level all on cpu) is serving"),
        ([REFERENCE], "warning m: no engine can be built here"),
        ([REFERENCE, engine("absent")], "warning m: engine absentall000 (onnxruntime fp32 at level all on cpu) is abs"),
        ([engine("stale"), engine("ready", "basic")], "ok m: engine staleall0000 (onnxruntime fp32 at level all on"),
        ([engine("rejected", reason="cosine 0.5 is below 0.9")], "is rejected: cosine 0.5 is below 0.9"),
        ([engine("quarantined", reason="failed 4 times")], "is quarantined: failed 4 times"),
        ([engine("failed")], "warning m: no engine is ready"),
    ],
)
def test_engine_states_have_one_line_each(found: list[EngineInfo], expected: str) -> None:
    assert expected in lines(models.engine_states("m", found, by_daemon=False))


@pytest.mark.parametrize("state", ["absent", "queued", "building", "verifying"])
def test_engine_states_queued_by_a_daemon_are_no_warning(state: str) -> None:
    (alone,) = models.engine_states("m", [REFERENCE, engine(state)], by_daemon=True)
    assert alone.result is Result.UNKNOWN
    (other,) = models.engine_states("m", [REFERENCE, engine("serving", "basic"), engine(state)], by_daemon=True)
    assert other.result is Result.OK


def test_engine_states_built_by_command_name_the_command() -> None:
    first, *_ = models.engine_states("m", [REFERENCE, engine("absent", reason="by command")], by_daemon=True)
    assert (first.result, first.remedy) == (Result.WARNING, "edged engines rebuild --engine absentall000")


FALLBACK = Composition(fallback=("2 NonMaxSuppression run on the CPU (2 of 90 nodes)",))
SLOW = AlarmInfo("slow", "inference takes 50 ms instead of 5 ms", "m", "", 1.0)


def made_of(shape: tuple[int | str, ...], **settings: str) -> Model:
    return Model.of(entry(**settings), inspection(shape=shape))


def placement(*engines: EngineInfo) -> Check:
    return models.placement("m", engines)


def latency(found: EngineInfo, *alarms: AlarmInfo) -> Check:
    return models.latency("m", [found], alarms)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            placement(engine("serving", composition=FALLBACK), engine("ready", "basic")),
            "warning m: engine servingall00",
        ),
        (placement(), "unknown"),
        (placement(engine(composition=Composition(nodes={"CPU": {"Conv": 3}}))), "ok"),
        (latency(engine()), "ok"),
        (latency(engine(latency_ms=201.0, reference_ms=300.0)), "ok"),  # built on a busy box
        (latency(engine(latency_ms=11.0)), "warning"),
        (latency(engine(latency_ms=None)), "unknown"),
        (latency(REFERENCE), "ok"),
        (latency(engine(), SLOW), "wrong m: inference takes 50 ms instead of 5 ms"),
        (latency(engine(), msgspec.structs.replace(SLOW, model="another")), "ok"),
        (models.shapes(made_of((1, 4))), "ok"),
        (models.shapes(made_of((1, "width"))), "warning m: x[1,width] has no fixed size"),
        (models.shapes(made_of((1, "width"), **{"profile.x": "1x1 1x8 1x16"})), "ok"),
        (models.batch(made_of((10, 3, 32, 32))), "warning"),
        (models.batch(made_of((1, 3, 32, 32))), "ok"),
        (models.batch(made_of((1, 4))), "unknown"),
    ],
)
def test_model_check_of_engines_and_inputs_has_its_result(found: Check, expected: str) -> None:
    assert lines([found]).startswith(expected)


def test_placement_fallback_is_named() -> None:
    assert FALLBACK.fallback[0] in placement(engine("serving", composition=FALLBACK)).message


@pytest.mark.parametrize(
    ("figures", "near"),
    [
        ({"cosine": 1.0, "relative_l2": 1e-7, "finite": 1.0}, []),
        ({"relative_l2": 1.9e-3}, ["relative_l2"]),
        ({"cosine": 0.9999905}, ["cosine"]),
        ({"relative_l2": 5e-3}, []),  # over the bound but accepted, so it did not decide
        ({"top1": 0.9991, "p99_abs": 7.0}, []),
        ({}, []),
    ],
)
def test_close_figures_are_those_near_their_bounds(figures: dict[str, float], near: list[str]) -> None:
    assert [figure for figure, _, _ in models.close_figures(figures, TOLERANCES["fp32"])] == near


def test_drift_uses_the_models_bounds() -> None:
    found = [engine(verdict=Verdict(True, "", {"relative_l2": 1e-3})), REFERENCE]
    assert lines(models.drift("m", found, {}, "fp32")).startswith("ok m: ")
    assert lines(models.drift("m", found, {"verify.relative_l2": "0.0011"}, "fp32")).startswith("warning m: engine ")
    assert lines(models.drift("m", [REFERENCE], {}, "fp32")).startswith("unknown")
    found = [engine(verdict=Verdict(True, "", {"relative_l2": 2.8e-2}))]
    assert lines(models.drift("m", found, {}, "fp16")).startswith("warning m: engine ")
    found = [engine(verdict=Verdict(True, "", {NO_VALUES: 1.0}))]
    assert "was not compared" in lines(models.drift("m", found, {}, "fp32"))


def test_admission_model_with_a_warning_shows_it_and_its_remedy() -> None:
    doubt = Finding(Stage.INFERENCE, Category.IMPLAUSIBLE, "boxes outside the picture", "set another family")
    found = Admission(inspection(), None, {"onnxruntime": "", "openvino": "no"}, warnings=(doubt,))
    taken, doubted, left = models.admission("m", "m.onnx", found)
    assert [each.result for each in (taken, doubted, left)] == [Result.OK, Result.WARNING, Result.UNKNOWN]
    assert (doubted.message, doubted.remedy) == (doubt.message, doubt.remedy)


def test_external_data_check_of_a_missing_file_is_wrong() -> None:
    whole = inspection(external=["w.bin"])
    assert lines(models.external_data("m", whole)).startswith("ok m: external data is complete: 1 file with")
    lost = msgspec.structs.replace(whole, external=(ExternalFile("w.bin", 0, "external data w.bin is missing"),))
    assert lines(models.external_data("m", lost)) == "wrong m: external data w.bin is missing"
    assert lines(models.external_data("m", inspection())).startswith("ok m: the model has no external data")


def test_store_view_changes_nothing(tmp_path: Path) -> None:
    facts, cache = Fingerprint(CPU_ONLY), tmp_path / "cache"
    assert not models.StoreView(tmp_path, cache, facts, Engines(), {}).store.records()
    assert not cache.exists()
    for folder in ("engines/damaged", "staging/unfinished"):
        (cache / folder).mkdir(parents=True)
        (cache / folder / "record.json").write_text("{")
    before = sorted(cache.rglob("*"))
    assert models.StoreView(tmp_path, cache, facts, Engines(), {}).store.counts.damaged == 1
    assert sorted(cache.rglob("*")) == before


async def test_model_checks_of_an_ensemble_look_for_its_models(tmp_path: Path) -> None:
    ensemble_files.write(tmp_path / "models", "e", ensemble_files.config(ensemble_files.CHAIN))
    facts = Fingerprint(CPU_ONLY)
    view = models.StoreView(tmp_path, tmp_path / "cache", facts, Engines(), {})
    of_daemon = msgspec.structs.replace(info("e", "refused", "", "no model 'a'"), parts=("a", "b"))
    state = msgspec.structs.replace(reported(), models=(of_daemon,))
    checks = models.ModelChecks(view, state, runtimes.Runtimes(CPU_ONLY), facts, tmp_path / "scratch")
    found = [check for step in checks.steps() for check in await step.ask()]
    assert [check.result for check in found] == [Result.WRONG, Result.WRONG]
    assert "it needs model 'a', which does not exist" in found[1].message
    for name in "ab":
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    checks = models.ModelChecks(view, None, runtimes.Runtimes(CPU_ONLY), facts, tmp_path / "scratch", "e")
    (step,) = checks.steps()
    (check,) = await step.ask()
    assert (check.result, check.message) == (Result.OK, "the model is an ensemble of a, b")
