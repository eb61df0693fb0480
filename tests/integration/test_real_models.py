"""Trained models from installed packages, served by a real daemon.

Each output must equal that of the graph as it is written (ONNX Runtime without optimisation), within the model's
tolerance. The fastest engine that the daemon accepted answers; the inputs are of the kind that the model is trained
for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from _pytest.mark.structures import ParameterSet

from edged.proto import open_inference_pb2 as pb
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import Calls
from tests.integration.trained import PICTURES, Floats, package_file, windows

# Silero's exports of one training: with a branch per rate, without branches, and for one rate only.
_VOICES = {"voice": "silero_vad", "voice_without_if": "silero_vad_op18_ifless", "voice_16k": "silero_vad_16k_op15"}
_RATES = {"voice": (16000, 8000), "voice_without_if": (16000, 8000), "voice_16k": (16000,)}
_PROBABILITY = 1e-3  # absolute; the error of a window continues in the state of later windows
_STATE = 1e-2  # absolute, of values up to about 1

_PATIENCE = 240.0  # seconds to build several engines of a model
_QUICK = ("ways_up", "upside_down")  # the others take longer to build
pytestmark = [pytest.mark.long, pytest.mark.timeout(360)]

Numbers = npt.NDArray[Any]  # of floats or whole numbers


def _marked(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if name in _QUICK else pytest.mark.long) for name in names]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the installed model files, by the name under which they are served."""
    folder = tmp_path_factory.mktemp("trained")
    found = {name: trained.find(folder) for name, trained in PICTURES.items()}
    found |= {name: package_file("silero_vad", f"data/{file}.onnx") for name, file in _VOICES.items()}
    return {name: file for name, file in found.items() if file is not None}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def calls(daemon: Daemon) -> Iterator[Calls]:
    with Calls(daemon.unix) as calls:
        yield calls


def _require(name: str, files: Mapping[str, Path], package: str) -> Path:
    if name not in files:
        pytest.skip(f"the package {package} is not installed")
    return files[name]


@contextlib.contextmanager
def _served(daemon: Daemon, name: str, file: Path) -> Iterator[None]:
    """Serve a model with its fastest float32 engine, with float32 tolerances; remove it afterwards."""
    with daemon.client() as client:
        client.add_model(name, file, {"precisions": "fp32"})
        try:
            daemon.ready(name)
            daemon.settled(name, _PATIENCE)
            yield
        finally:
            client.remove_model(name)


def _as_written(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _ask(calls: Calls, model: str, inputs: Mapping[str, Numbers], **parameters: bool | int) -> dict[str, Numbers]:
    """Send float and 64-bit integer tensors by name in one request; return the answer's outputs."""
    message = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        datatype = {"f": "FP32", "i": "INT64"}[array.dtype.kind]
        message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    for key, value in parameters.items():
        field = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(message.parameters[key], field, value)
    answer = calls.infer(message)
    return {
        output.name: np.frombuffer(data, np.float32).reshape(tuple(output.shape))
        for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def _assert_close(answer: Mapping[str, Numbers], expected: Mapping[str, Numbers], tolerance: float) -> None:
    assert list(answer) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(answer[name], array, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", _marked(PICTURES))
def test_trained_model_answers_as_the_graph_is_written(
    name: str, files: dict[str, Path], daemon: Daemon, calls: Calls
) -> None:
    trained = PICTURES[name]
    file = _require(name, files, trained.package)
    session = _as_written(file)
    outputs = [output.name for output in session.get_outputs()]
    answers = []
    with _served(daemon, name, file):
        for picture in trained.ask():
            answers.append(_ask(calls, name, {trained.input: picture}))
            expected = session.run(outputs, {trained.input: picture})
            _assert_close(answers[-1], dict(zip(outputs, expected, strict=True)), trained.tolerance)
    assert _tells_apart(answers, trained.tolerance)  # otherwise any answer would be within the tolerance


def _tells_apart(answers: list[dict[str, Numbers]], tolerance: float) -> bool:
    """Return True if outputs vary by far more than the tolerance."""
    return all(float(np.ptp(array)) > 20 * tolerance for answer in answers for array in answer.values())


@pytest.mark.parametrize("name", _marked(_VOICES))
def test_voice_is_detected_across_windows(name: str, files: dict[str, Path], daemon: Daemon, calls: Calls) -> None:
    file = _require(name, files, "silero-vad")
    session = _as_written(file)
    with _served(daemon, name, file):
        for rate in _RATES[name]:
            for rows in (1, 3):
                _compare_voices(name, session, calls, rate, rows)


def _compare_voices(name: str, session: onnxruntime.InferenceSession, calls: Calls, rate: int, rows: int) -> None:
    """Compare answers: with the state carried by the client, and with the state kept by the daemon."""
    asked: dict[str, Numbers] = {"sr": np.array(rate, np.int64)}
    expected_state: Numbers = np.zeros((2, rows, 128), np.float32)
    carried, received = expected_state, []
    cut = windows(rate, rows)
    for at, window in enumerate(cut):
        inputs = {"input": window, **asked}
        said, expected_state = session.run(["output", "stateN"], {**inputs, "state": expected_state})
        answer = _ask(calls, name, {**inputs, "state": carried})
        carried = answer["stateN"]
        _assert_close(answer, {"output": said, "stateN": expected_state}, _STATE)
        _assert_close({"output": answer["output"]}, {"output": said}, _PROBABILITY)
        place = {"sequence_start": at == 0, "sequence_end": at == len(cut) - 1}
        kept = _ask(calls, name, inputs, sequence_id=rate + rows, **place)
        _assert_close(kept, {"output": said}, _PROBABILITY)
        received.append(said)
    loudest = np.concatenate(received, axis=1)
    assert (loudest.max(1) > 0.9).all()  # the input has voice and silence,
    assert (loudest.min(1) < 0.1).all()
    assert not np.allclose(_forgetful(session, cut, asked), loudest, atol=0.1)  # and the state has an effect


def _forgetful(session: onnxruntime.InferenceSession, cut: list[Floats], asked: Mapping[str, Numbers]) -> Numbers:
    """Return the answers to the windows without any state."""
    nothing = np.zeros((2, len(cut[0]), 128), np.float32)
    said = [session.run(["output"], {"input": window, "state": nothing, **asked})[0] for window in cut]
    return np.concatenate(said, axis=1)
