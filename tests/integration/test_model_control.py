"""Triton model control on a real daemon: versions, configurations, load and unload commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.proto import model_config_pb2 as mc
from edged.proto import open_inference_pb2 as pb
from tests.integration import inference_calls, onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import refusal


class Calls(inference_calls.Calls):
    """Blocking calls of the protocol, with shortcuts for these tests."""

    def scaled(self, name: str, version: str = "") -> tuple[float, str]:
        """Return the factor of a `scale` model, and the version that answered."""
        ones = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
        raw = np.ones((1, 4), np.float32).tobytes()
        answer = self("ModelInfer", model_name=name, model_version=version, inputs=[ones], raw_input_contents=[raw])
        return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0]), answer.model_version

    def index(self, **fields: Any) -> dict[tuple[str, str], tuple[str, str]]:
        return {(m.name, m.version): (m.state, m.reason) for m in self("RepositoryIndex", **fields).models}

    def load(self, name: str, config: Any = None, **files: bytes) -> None:
        parameters = {f"file:{path}": pb.ModelRepositoryParameter(bytes_param=data) for path, data in files.items()}
        if config is not None:
            parameters["config"] = pb.ModelRepositoryParameter(string_param=json.dumps(config))
        self("RepositoryModelLoad", model_name=name, parameters=parameters)


def refused(code: grpc.StatusCode, call: Callable[[], object]) -> str:
    """Return the message of a call that must fail with this code."""
    found, line = refusal(call)
    assert found is code, line
    return line


def scale(folder: Path, version: int, factor: float | None = None) -> Path:
    """Add a version of a model that multiplies by its number, or by `factor`. The version appears atomically."""
    folder.mkdir(exist_ok=True)
    staged = folder / f".{version}"
    staged.mkdir()
    onnx_files.scale(staged / "model.onnx", factor or float(version))
    return staged.rename(folder / str(version)) / "model.onnx"


@contextmanager
def serving(daemon: Daemon) -> Iterator[Calls]:
    with daemon, Calls(daemon.unix) as calls:
        yield calls


@contextmanager
def asked(daemon: Daemon, *versions: str) -> Iterator[list[tuple[float, str] | grpc.RpcError]]:
    """Request these versions of the model `m` in turn, all the time; yield the list of answers."""
    answers: list[tuple[float, str] | grpc.RpcError] = []
    is_over = threading.Event()

    def ask() -> None:
        with Calls(daemon.unix) as calls:
            while not is_over.is_set():
                for version in versions:
                    try:
                        answers.append(calls.scaled("m", version))
                    except grpc.RpcError as error:
                        answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


# -- versions -------------------------------------------------------------------------------------------------------


def test_model_control_serves_several_versions_and_the_newest_by_default() -> None:
    daemon = Daemon(builds=False)
    for version in (1, 2, 3):
        scale(daemon.models / "m", version)
    (daemon.models / "m" / "edged.toml").write_text('versions = "1,3"')
    with serving(daemon) as ask:
        daemon.ready("m")
        daemon.ready("m:1")
        assert ask.scaled("m") == (3.0, "3")
        assert ask.scaled("m", "3") == (3.0, "3")
        assert ask.scaled("m", "1") == (1.0, "1")
        assert ask.scaled("m:1") == (1.0, "1")
        assert list(ask("ModelMetadata", name="m").versions) == ["1", "3"]
        assert ask("ModelReady", name="m", version="1").ready
        assert ask("ModelConfig", name="m", version="1").config.version_policy.specific.versions == [1, 3]
        assert "available: 3, 1" in refused(NOT_FOUND, lambda: ask.scaled("m", "2"))
        assert not ask("ModelReady", name="m", version="2").ready
        for method in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
            assert "available: 3, 1" in refused(NOT_FOUND, lambda: ask(method, name="m", version="2"))  # noqa: B023
        assert "whole numbers" in refused(INVALID, lambda: ask.scaled("m", "newest"))
        figures = {(m.name, m.version) for m in ask("ModelStatistics", name="m").model_stats}
        assert figures == {("m", "1"), ("m", "3")}
        assert ask.index() == {("m", "3"): ("READY", ""), ("m", "1"): ("READY", "")}


@pytest.mark.long
def test_model_control_new_version_replaces_the_old_one_without_a_failed_request() -> None:
    daemon = Daemon(builds=False)
    scale(daemon.models / "m", 1)
    (daemon.models / "m" / "config.pbtxt").write_text("version_policy { latest { num_versions: 2 } }")
    with serving(daemon) as ask:
        daemon.ready("m")
        with asked(daemon, "") as answers:
            wait_for("version 1 answers", lambda: (1.0, "1") in answers)
            scale(daemon.models / "m", 2)
            wait_for("version 2 answers", lambda: (2.0, "2") in answers)
            wait_for("version 1 answers by its number", lambda: ask.scaled("m", "1") == (1.0, "1"))
            scale(daemon.models / "m", 3)
            wait_for("version 3 answers", lambda: (3.0, "3") in answers)
            wait_for("version 1 is unloaded", lambda: set(ask.index()) == {("m", "2"), ("m", "3")})
        assert [answer for answer in answers if isinstance(answer, grpc.RpcError)] == []
        reported = [answer[0] for answer in answers if not isinstance(answer, grpc.RpcError)]
        assert reported == sorted(reported), "no old version answers after a new one"
        refused(NOT_FOUND, lambda: ask.scaled("m", "1"))


def test_model_control_removed_newest_version_is_replaced_by_the_one_before() -> None:
    daemon = Daemon(builds=False)
    for version in (1, 2):
        scale(daemon.models / "m", version)
    (daemon.models / "m" / "config.pbtxt").write_text("version_policy { all {} }")
    with serving(daemon) as ask:
        daemon.ready("m")
        daemon.ready("m:1")
        with asked(daemon, "", "1") as answers:
            (daemon.models / "m" / "2").rename(daemon.models / ".gone")
            wait_for("version 1 answers", lambda: ask.scaled("m") == (1.0, "1"))
            wait_for("the index has version 1 only", lambda: ask.index() == {("m", "1"): ("READY", "")})
        assert set(answers) <= {(1.0, "1"), (2.0, "2")}
        refused(NOT_FOUND, lambda: ask.scaled("m", "2"))


def test_model_control_refused_new_version_leaves_the_old_one_serving() -> None:
    daemon = Daemon(builds=False)
    scale(daemon.models / "m", 1)
    with serving(daemon) as ask:
        daemon.ready("m")
        broken = daemon.models / "m" / "2"
        broken.mkdir()
        (broken / "model.onnx").write_text("This is not a model.\n")
        wait_for("version 2 is refused", lambda: ask.index().get(("m", "2"), ("", ""))[0] == "UNAVAILABLE")
        assert ask.index()["m", "1"] == ("READY", "")
        assert set(ask.index(ready=True)) == {("m", "1")}
        assert ask.scaled("m") == ask.scaled("m", "1") == (1.0, "1")
        assert list(ask("ModelMetadata", name="m").versions) == ["1"]
        assert "is not ready" in refused(UNAVAILABLE, lambda: ask.scaled("m", "2"))


# -- configurations -------------------------------------------------------------------------------------------------

CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }
optimization { cuda { graphs: true } }
something_new: 3
model_warmup { name: "w" batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 random_data: true } } }
"""


def test_model_config_is_applied_and_unused_keys_are_reported() -> None:
    daemon = Daemon(builds=False)
    (daemon.models / "m" / "1").mkdir(parents=True)
    onnx_files.identity(daemon.models / "m" / "1" / "model.onnx", "FP32")
    (daemon.models / "m" / "config.pbtxt").write_text(CONFIG)
    wrong = {
        "wrong_type": 'input { name: "x" data_type: TYPE_INT64 }',
        "wrong_name": 'input { name: "z" }',
        "wrong_text": "max_batch_size: many",
        "wrong_warmup": 'model_warmup { name: "w" inputs { key: "x" value { dims: [ 1, 4 ] input_data_file: "x" } } }',
    }
    for name, text in wrong.items():
        scale(daemon.models / name, 1)
        (daemon.models / name / "config.pbtxt").write_text(text)
    (daemon.models / "wrong_warmup" / "warmup").mkdir()
    (daemon.models / "wrong_warmup" / "warmup" / "x").write_text("too short")
    with serving(daemon) as ask:
        daemon.ready("m")
        config = ask("ModelConfig", name="m").config
        assert (config.name, config.platform, config.backend) == ("m", "onnxruntime_onnx", "onnxruntime")
        assert config.max_batch_size == 8
        assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("x", mc.TYPE_FP32, [4])]
        assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [("y", mc.TYPE_FP32, [4])]
        assert list(config.dynamic_batching.preferred_batch_size) == [4]
        assert config.dynamic_batching.max_queue_delay_microseconds == 100
        metadata = ask("ModelMetadata", name="m")
        assert [list(tensor.shape) for tensor in (*metadata.inputs, *metadata.outputs)] == [[-1, 4], [-1, 4]]
        with daemon.client() as client:
            (model,) = [model for model in client.models() if model.name == "m"]
        assert [note.split(": ")[:2] for note in model.notes] == [
            ["config.pbtxt", "line 7"],
            ["config.pbtxt", "optimization.cuda.graphs"],
        ]
        log = daemon.log.read_text()
        assert log.count("something_new") == log.count("optimization.cuda.graphs") == 1

        def reason(name: str) -> str:
            return wait_for(f"{name} is refused", lambda: ask.index()[name, "1"][1])

        assert "input 'x' is INT64; in the model it is FP32" in reason("wrong_type")
        assert "input 'z', which the model does not have" in reason("wrong_name")
        assert "config.pbtxt: cannot be parsed: 1:17" in reason("wrong_text")
        assert "model_warmup 'w': x has 9 bytes, but FP32[1, 4] takes 16" in reason("wrong_warmup")
        assert "in the model it is FP32" in refused(UNAVAILABLE, lambda: ask.scaled("wrong_type"))


def test_failed_warm_up_keeps_the_model_unready_until_fixed() -> None:
    daemon = Daemon(builds=False)
    folder = daemon.models / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "warmup").mkdir()
    onnx_files.pick(folder / "1" / "model.onnx")
    text = 'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_INT64 dims: 1 input_data_file: "x" } } }'
    (folder / "config.pbtxt").write_text(text)
    (folder / "warmup" / "x").write_bytes(np.array([99], np.int64).tobytes())
    with serving(daemon) as ask:
        why = wait_for("the model is refused", lambda: ask.index()["m", "1"][1] if ask.index() else "")
        assert "the model_warmup request 'w' failed" in why
        (folder / "warmup" / "x").write_bytes(np.array([3], np.int64).tobytes())
        daemon.ready("m")


@pytest.mark.long
def test_model_config_without_a_file_is_derived_from_the_model() -> None:
    daemon = Daemon(builds=False)
    scale(daemon.models / "fixed", 1)
    for name, settings in (("open", ""), ("batched", 'batch.max = "4"')):
        (daemon.models / name / "1").mkdir(parents=True)
        onnx_files.identity(daemon.models / name / "1" / "model.onnx", "BYTES" if name == "open" else "FP32")
        (daemon.models / name / "edged.toml").write_text(settings)
    with serving(daemon) as ask:
        for name, rows, dims in (("fixed", 0, [1, 4]), ("open", 0, [-1, 4]), ("batched", 4, [4])):
            daemon.ready(name)
            config = ask("ModelConfig", name=name).config
            assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (
                rows,
                dims,
                dims,
            )
            assert config.input[0].data_type == (mc.TYPE_STRING if name == "open" else mc.TYPE_FP32)
            assert config.HasField("dynamic_batching") == (name == "batched")
            shape = [-1, *dims] if rows else dims
            assert list(ask("ModelMetadata", name=name).inputs[0].shape) == shape


# -- control --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_model_control_explicit_loads_and_unloads_by_command() -> None:
    daemon = Daemon(builds=False, config='model_control = "explicit"\nstartup_models = ["first"]\n')
    for name in ("first", "m"):
        scale(daemon.models / name, 1)
    with serving(daemon) as ask:
        daemon.ready("first")
        assert ask.index() == {("first", "1"): ("READY", ""), ("m", ""): ("UNAVAILABLE", "it is not loaded")}
        refused(NOT_FOUND, lambda: ask.scaled("m"))
        ask.load("m")
        assert ask.scaled("m") == (1.0, "1")
        scale(daemon.models / "m", 2)
        assert ask.scaled("m") == (1.0, "1"), "the daemon reads the disk on command only"
        ask.load("m")
        assert ask.scaled("m") == (2.0, "2")
        ask("RepositoryModelUnload", model_name="m")
        assert ask.index()["m", ""] == ("UNAVAILABLE", "unloaded")
        refused(NOT_FOUND, lambda: ask.scaled("m"))
        listed = ask.index()
        for absent in ("unknown", "m"):
            ask("RepositoryModelUnload", model_name=absent)
        assert ask.index() == listed
        dependents = {"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)}
        ask("RepositoryModelUnload", model_name="first", parameters=dependents)
        assert set(ask.index(ready=True)) == set()
        ask.load("first")
        assert ask.scaled("first") == (1.0, "1")


@pytest.mark.long
def test_model_loads_from_files_of_the_request_and_reloads_from_disk() -> None:
    daemon = Daemon(builds=False, config='model_control = "explicit"\n')
    other = scale(daemon.home / "other", 7).read_bytes()
    scale(daemon.models / "m", 1)
    with serving(daemon) as ask:
        ask.load("m")
        assert ask.scaled("m") == (1.0, "1")
        ask.load("m", {"version_policy": {"all": {}}}, **{"7/model.onnx": other, "8/model.onnx": other})
        assert ask.scaled("m", "7") == (7.0, "7")
        assert ask.scaled("m") == (7.0, "8")
        assert [path.name[:2] for path in (daemon.state / "overrides").iterdir()] == ["m-"]
        ask.load("fresh", {}, **{"1/model.onnx": other})
        assert ask.scaled("fresh") == (7.0, "1")

        # A failed load changes nothing.
        text = b"This is not a model.\n"
        assert "is a text file" in refused(INVALID, lambda: ask.load("m", {}, **{"9/model.onnx": text}))
        refused(INVALID, lambda: ask.load("m", {"input": [{"name": "z"}]}, **{"9/model.onnx": other}))
        refused(INVALID, lambda: ask.load("m", {}, **{"../9/model.onnx": other}))
        refused(INVALID, lambda: ask.load("m", None, **{"9/model.onnx": other}))
        refused(INVALID, lambda: ask.load("new", {}, **{"1/model.onnx": text}))
        assert ask.scaled("m") == (7.0, "8")
        assert ask.scaled("m", "7") == (7.0, "7")
        assert ask.index()["new", ""][0] == "UNAVAILABLE"
        assert not (daemon.state / "9").exists()
        assert len(list((daemon.state / "overrides").iterdir())) == 2

        ask.load("m")
        assert ask.scaled("m") == (1.0, "1")
        wait_for("the command's files are removed", lambda: len(list((daemon.state / "overrides").iterdir())) == 1)

        ask.load("m", {}, **{"7/model.onnx": other})
        with daemon.client() as client:
            client.remove_model("m")
        folder = daemon.state / "overrides"
        wait_for("the command's files are removed", lambda: [each.name[:5] for each in folder.iterdir()] == ["fresh"])


def test_model_control_invalid_commands_are_refused() -> None:
    daemon = Daemon(builds=False, config='model_control = "explicit"\n')
    with serving(daemon) as ask:
        parameters = {"wibble": pb.ModelRepositoryParameter(string_param="x")}
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            call = lambda **more: ask(method, model_name="m", **more)  # noqa: B023, E731
            assert "'wibble'" in refused(INVALID, lambda: call(parameters=parameters))  # noqa: B023
            assert "repository_name" in refused(
                grpc.StatusCode.UNIMPLEMENTED,
                lambda: call(repository_name="r"),  # noqa: B023
            )
            refused(INVALID, lambda: ask(method, model_name="../m"))  # noqa: B023
        assert "no model 'm'" in refused(NOT_FOUND, lambda: ask("RepositoryModelLoad", model_name="m"))
        ask("RepositoryModelUnload", model_name="m")  # unloading an unknown model succeeds
        as_bytes = {"config": pb.ModelRepositoryParameter(bytes_param=b"{}")}
        assert "string_param" in refused(
            INVALID, lambda: ask("RepositoryModelLoad", model_name="m", parameters=as_bytes)
        )


def test_model_control_poll_refuses_load_and_unload(daemon: Daemon) -> None:
    with Calls(daemon.unix) as ask:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            reported = refused(grpc.StatusCode.FAILED_PRECONDITION, lambda: ask(method, model_name="shapes"))  # noqa: B023
            assert 'model_control = "explicit"' in reported


def test_model_control_none_ignores_later_changes() -> None:
    daemon = Daemon(builds=False, config='model_control = "none"\n')
    scale(daemon.models / "m", 1)
    with serving(daemon) as ask:
        daemon.ready("m")
        scale(daemon.models / "m", 2)
        scale(daemon.models / "late", 1)
        refused(NOT_FOUND, lambda: ask.scaled("late"))
        assert set(ask.index()) == {("m", "1")}
        with daemon.client() as client:
            client.add_model("added", daemon.models / "late" / "1" / "model.onnx")
            daemon.ready("added")
            client.remove_model("m")
        wait_for("m is removed", lambda: set(ask.index()) == {("added", "1")})
