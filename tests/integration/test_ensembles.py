"""Ensembles on a real daemon: chains, branches, batches, faults between the steps, and models that are
added, removed and changed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.client.client import Client
from edged.errors import EdgedError, InvalidInput
from edged.proto import open_inference_pb2 as pb
from tests.ensemble_files import CHAIN, config, write
from tests.integration import bounded_models, onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, method, refusal, request
from tests.integration.test_http import HttpDaemon, reported
from tests.integration.test_model_control import scale
from tests.integration.web import ask as http

INVALID, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
ONES = np.ones((1, 4), np.float32)
DIAMOND = (("a", "x=X", "y=t"), ("b", "x=t", "y=l"), ("wide", "x=t", "y=r"), ("add", "p=l q=r", "y=Y"))


def single(models: Path, name: str, graph: str, text: str = "") -> None:
    (models / name / "1").mkdir(parents=True)
    onnx_files.write(models / name / "1" / "model.onnx", graph)
    if text:
        (models / name / "config.pbtxt").write_text(text)


def rows(name: str, factor: float) -> str:
    return f"(float[n,4] x) => (float[n,4] y) <float[1] f = {{{factor}}}> {{ y = Mul(x, f) }}"


@pytest.fixture(scope="module")
def daemon() -> Iterator[HttpDaemon]:
    daemon = HttpDaemon("127.0.0.1:0")
    models = daemon.models
    scale(models / "a", 1, 2.0)
    scale(models / "b", 1, 3.0)
    scale(models / "wide", 1, 10.0)
    single(models, "add", "(float[1,4] p, float[1,4] q) => (float[1,4] y) { y = Add(p, q) }")
    single(models, "twice", "(float[1,4] x) => (float[k,4] y) { y = Concat<axis = 0>(x, x) }")
    single(models, "five", "(float[1,5] x) => (float[1,5] y) { y = Identity(x) }")
    batched = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
    single(models, "rows_a", rows("x", 2.0), batched)
    single(models, "rows_b", rows("x", 3.0), batched)
    bounded_models.place(models, "slow", bounded_models.endless(), limits__seconds="60")
    single(models, "far", "(float[1] x) => (float[1] y) <float[1] f = {1e15}> { y = Mul(x, f) }")
    write(models, "chain", config(CHAIN))
    write(models, "diamond", config(DIAMOND, outputs=["Y FP32 1,4", "t FP32 1,4"]))
    write(models, "torn", config([("twice", "x=X", "y=t"), ("b", "x=t", "y=Y")]))
    write(models, "unlike", config([("five", "x=X", "y=t"), ("b", "x=t", "y=Y")]))
    write(models, "lost", config([("a", "x=X", "y=t"), ("missing", "x=t", "y=Y")]))
    batch = config(
        [("rows_a", "x=X", "y=t"), ("rows_b", "x=t", "y=Y")], ["X FP32 4"], ["Y FP32 4"], more="max_batch_size: 8"
    )
    write(models, "batch", batch)
    write(models, "late", config([("far", "x=X", "y=t"), ("slow", "x=t", "y=Y")], ["X FP32 1"], ["Y FP32 1"]))
    with daemon:
        for name in ("chain", "diamond", "torn", "batch", "late", "five"):
            daemon.ready(name)
        yield daemon


@pytest.fixture
def calls(daemon: HttpDaemon) -> Iterator[Calls]:
    with Calls(daemon.unix) as found:
        yield found


def values(answer: pb.ModelInferResponse) -> dict[str, Any]:
    return {
        output.name: np.frombuffer(raw, np.float32).reshape(output.shape).tolist()
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def index(calls: Calls) -> dict[str, tuple[str, str]]:
    """Return state and reason of each model in the repository index."""
    return {each.name: (each.state, each.reason) for each in calls("RepositoryIndex").models}


def ask(model: str, given: Any = ONES, **fields: Any) -> pb.ModelInferRequest:
    return request(model, given, "X", **fields)


def test_ensemble_chain_answers_as_a_model(calls: Calls) -> None:
    answer = calls.infer(ask("chain", id="seven"))
    assert (answer.model_name, answer.model_version, answer.id) == ("chain", "1", "seven")
    assert values(answer) == {"Y": [[6.0] * 4]}
    assert calls("ModelReady", name="chain").ready
    metadata = calls("ModelMetadata", name="chain")
    assert (metadata.platform, list(metadata.versions)) == ("ensemble", ["1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [("X", "FP32", [1, 4])]
    found = calls("ModelConfig", name="chain").config
    assert (found.platform, found.backend, len(found.instance_group)) == ("ensemble", "", 0)
    steps = [(s.model_name, s.model_version, dict(s.input_map)) for s in found.ensemble_scheduling.step]
    assert steps == [("a", -1, {"x": "X"}), ("b", -1, {"x": "t"})]


def test_ensemble_diamond_has_outputs_of_several_steps(calls: Calls) -> None:
    assert values(calls.infer(ask("diamond"))) == {"Y": [[26.0] * 4], "t": [[2.0] * 4]}
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name="t")
    before = calls.statistics("add")[0].inference_count
    assert values(calls.infer(ask("diamond", outputs=[wanted]))) == {"t": [[2.0] * 4]}
    assert calls.statistics("add")[0].inference_count == before, "the steps of other outputs do not run"


def test_ensemble_requests_are_batched_in_its_models(calls: Calls) -> None:
    given = [np.full((1 + index % 3, 4), index, np.float32) for index in range(24)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda each: calls.infer(ask("batch", each)), given))
    for answer, each in zip(answers, given, strict=True):
        assert values(answer) == {"Y": (each * 6).tolist()}
    (figures,) = calls.statistics("rows_b")
    assert figures.inference_count == sum(map(len, given))
    assert figures.execution_count < len(given)
    code, words = refusal(lambda: calls.infer(ask("batch", np.zeros((9, 4), np.float32))))
    assert (code, "takes at most 8" in words) == (INVALID, True)


def test_ensemble_statistics_are_its_own_and_those_of_its_models(calls: Calls) -> None:
    def figures(name: str) -> pb.ModelStatistics:
        (found,) = calls.statistics(name)
        return found

    before = {name: figures(name).inference_stats.success.count for name in ("chain", "a")}
    calls.infer(ask("chain"))
    found = figures("chain")
    for name, count in before.items():
        assert figures(name).inference_stats.success.count == count + 1
    assert found.inference_count == found.execution_count == found.inference_stats.compute_infer.count
    assert found.last_inference > 0
    assert [batch.batch_size for batch in found.batch_stats] == [1]
    assert {"chain", "a", "b"} <= {each.name for each in calls.statistics()}


def test_ensemble_wrong_shape_between_the_steps_is_an_error_of_the_request(calls: Calls) -> None:
    code, words = refusal(lambda: calls.infer(ask("torn")))
    assert code is INVALID
    assert words.startswith("ensemble 'torn', step 1 (model 'b'): input 'x' of the model is [1, 4]")
    assert values(calls.infer(ask("chain"))) == {"Y": [[6.0] * 4]}


def test_ensemble_that_cannot_be_served_is_unavailable_with_the_reason(daemon: HttpDaemon, calls: Calls) -> None:
    for name, why in (("lost", "no model 'missing'"), ("unlike", "tensor 'X' is [1, 4] for the ensemble and [1, 5]")):
        for call in (
            lambda: calls.infer(ask(name)),  # noqa: B023
            lambda: calls("ModelReady", name=name),  # noqa: B023
            lambda: calls("ModelMetadata", name=name),  # noqa: B023
            lambda: calls("ModelConfig", name=name),  # noqa: B023
        ):
            code, words = refusal(call)
            assert code is UNAVAILABLE
            assert why in words
    assert index(calls)["chain"] == ("READY", "")
    assert index(calls)["lost"][0] == "UNAVAILABLE"
    assert calls("ServerReady").ready, "ensembles that can never be served do not count"
    with daemon.client() as client:
        infos = {info.name: info for info in client.models()}
        assert infos["chain"].parts == ("a", "b")
        assert infos["lost"].state == "refused"
        kinds = {alarm.model for alarm in client.status().alarms if alarm.kind == "unserved"}
        assert kinds == {"lost", "unlike"}


def test_ensemble_command_that_needs_an_engine_is_refused(daemon: HttpDaemon) -> None:
    with daemon.client() as client:

        def stream(client: Client) -> None:
            for _ in client.stream("chain", [np.zeros((8, 8, 3), np.uint8)]):
                pass

        for call in (stream, lambda client: client.set_model("chain", {"batch.max": "2"})):
            with pytest.raises(InvalidInput, match="ensemble"):
                call(client)
        with pytest.raises(EdgedError, match="ensemble"):
            list(client.rebuild("chain"))


def test_ensemble_over_http_and_in_a_stream(daemon: HttpDaemon, calls: Calls) -> None:
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}], "id": "x"}
    answer = reported(daemon, "POST", "v2/models/chain/infer", body)
    assert answer["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [1, 4], "data": [6.0] * 4}]
    assert reported(daemon, "GET", "v2/models/chain")["platform"] == "ensemble"
    assert reported(daemon, "GET", "v2/models/chain/config")["ensemble_scheduling"]["step"][1]["model_name"] == "b"
    assert http(daemon.web, "GET", "v2/models/chain/ready", None)[0] == 200
    status, _, text = http(daemon.web, "POST", "v2/models/lost/infer", json.dumps(body).encode())
    assert (status, "no model 'missing'" in text.decode()) == (503, True)
    with grpc.insecure_channel(daemon.unix) as channel:
        stream = method(channel, "ModelStreamInfer")(iter([ask("chain"), ask("torn"), ask("diamond")]))
        responses = list(stream)
    assert [bool(each.error_message) for each in responses] == [False, True, False]
    assert responses[0].infer_response.parameters["triton_final_response"].bool_param


def test_ensemble_client_that_leaves_stops_the_step_that_runs(daemon: HttpDaemon, calls: Calls) -> None:
    with grpc.insecure_channel(daemon.unix) as channel:
        running = method(channel, "ModelInfer").future(ask("late", np.ones(1, np.float32)), timeout=60)
        wait_for("the first step is answered", lambda: calls.statistics("far")[0].inference_count > 0)
        running.cancel()
    # The endless step would run for a minute; the next request of its model is answered at once.
    given = request("slow", np.zeros(1, np.float32))
    assert calls.infer(given).outputs[0].name == "y"
    assert calls.statistics("late")[0].inference_stats.fail.count == 0


def test_ensemble_deadline_in_the_second_step_ends_the_request(daemon: HttpDaemon, calls: Calls) -> None:
    with grpc.insecure_channel(daemon.unix) as channel:
        infer = method(channel, "ModelInfer")
        code, _ = refusal(lambda: infer(ask("late", np.ones(1, np.float32)), timeout=0.5))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert calls.infer(request("slow", np.zeros(1, np.float32))).outputs[0].name == "y"


# -- models that change -----------------------------------------------------------------------------------------------


class Asking:
    """Sends requests to an ensemble without a pause; use it in a `with`."""

    def __init__(self, daemon: Daemon, model: str) -> None:
        self._daemon, self._model, self._stop = daemon, model, threading.Event()
        self.answers: list[float] = []
        self.errors: list[tuple[grpc.StatusCode, str]] = []
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with Calls(self._daemon.unix) as calls:
            while not self._stop.is_set():
                try:
                    self.answers.append(float(values(calls.infer(ask(self._model)))["Y"][0][0]))
                except grpc.RpcError as error:
                    self.errors.append((error.code(), str(error.details())))
                time.sleep(0.005)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.long
def test_ensemble_follows_models_that_are_replaced_removed_and_added() -> None:
    daemon = Daemon(builds=False)
    scale(daemon.models / "a", 1, 2.0)
    scale(daemon.models / "b", 1, 3.0)
    write(daemon.models, "e", config(CHAIN))
    with daemon, Calls(daemon.unix) as calls:
        daemon.ready("e")
        with Asking(daemon, "e") as asking:
            wait_for("answers come", lambda: asking.answers)
            scale(daemon.models / "b", 2, 5.0)
            wait_for("the new version answers", lambda: 10.0 in asking.answers)
        assert asking.errors == [], "no request fails while a model is replaced"
        assert set(asking.answers) == {6.0, 10.0}

        with Asking(daemon, "e") as asking:
            (daemon.models / "b").rename(daemon.models / ".b")
            wait_for("the ensemble is refused", lambda: asking.errors)
            (daemon.models / ".b").rename(daemon.models / "b")
            wait_for("the ensemble is ready again", lambda: index(calls)["e"] == ("READY", ""))
            asking.answers.clear()
            wait_for("requests are answered again", lambda: asking.answers)
        assert {code for code, _ in asking.errors} == {UNAVAILABLE}
        assert all("model 'b'" in words for _, words in asking.errors)

        broken = config([("a", "x=X", "y=t"), ("b", "x=t", "lost=Y")])
        (daemon.models / "e" / "config.pbtxt").write_text(broken)
        wait_for("the change is noticed", lambda: "has no output 'lost'" in index(calls)["e"][1])
        code, words = refusal(lambda: calls.infer(ask("e")))
        assert (code, "config.pbtxt" in words) == (UNAVAILABLE, True)
        (daemon.models / "e").rename(daemon.models / ".e")
        wait_for("it is gone", lambda: "e" not in index(calls))
        code, _ = refusal(lambda: calls.infer(ask("e")))
        assert code is grpc.StatusCode.NOT_FOUND


@pytest.mark.long
def test_ensemble_is_loaded_and_unloaded_with_its_models() -> None:
    daemon = Daemon(builds=False, config='model_control = "explicit"\n')
    scale(daemon.models / "a", 1, 2.0)
    scale(daemon.models / "b", 1, 3.0)
    write(daemon.models, "e", config(CHAIN))

    def states(calls: Calls) -> dict[str, str]:
        return {name: state for name, (state, _) in index(calls).items()}

    with daemon, Calls(daemon.unix) as calls:
        assert set(states(calls).values()) == {"UNAVAILABLE"}
        calls("RepositoryModelLoad", model_name="e")
        assert values(calls.infer(ask("e"))) == {"Y": [[6.0] * 4]}
        assert set(states(calls).values()) == {"READY"}
        calls("RepositoryModelUnload", model_name="b")
        code, words = refusal(lambda: calls.infer(ask("e")))
        assert (code, "no model 'b'" in words) == (UNAVAILABLE, True)
        calls("RepositoryModelLoad", model_name="b")
        assert values(calls.infer(ask("e"))) == {"Y": [[6.0] * 4]}
        unload = {"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)}
        calls("RepositoryModelUnload", model_name="e", parameters=unload)
        assert states(calls) == {"a": "UNAVAILABLE", "b": "READY", "e": "UNAVAILABLE"}
        changed = json.dumps(
            {
                "platform": "ensemble",
                "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1, 4]}],
                "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1, 4]}],
                "ensemble_scheduling": {
                    "step": [
                        {"model_name": "b", "model_version": -1, "input_map": {"x": "X"}, "output_map": {"y": "Y"}}
                    ]
                },
            }
        )
        given = {"config": pb.ModelRepositoryParameter(string_param=changed)}
        calls("RepositoryModelLoad", model_name="e", parameters=given)
        assert values(calls.infer(ask("e"))) == {"Y": [[3.0] * 4]}
