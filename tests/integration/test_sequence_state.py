"""A trained voice detector with its state in the daemon: answers equal those with the state carried by hand.

The models are part of the package `silero-vad` (MIT); none of its code runs.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest

from edged.proto import open_inference_pb2 as pb
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import infer, method, refusal, tell

RATE, WINDOW = 16000, 512
PACKAGE = importlib.util.find_spec("silero_vad")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="silero-vad is not installed")


def model_file(name: str) -> Path:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "data" / f"{name}.onnx"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    arguments = [f"--model=voice={model_file('silero_vad')}", f"--model=plain={model_file('silero_vad_op18_ifless')}"]
    with Daemon(*arguments, builds=False) as daemon:
        daemon.ready("voice")
        daemon.ready("plain")
        yield daemon


def sound(rows: int = 1, windows: int = 12) -> np.ndarray:
    """Return bursts that resemble a voice, [windows, rows, samples]: a sum of harmonics, switched on and off."""
    at = np.arange(windows * WINDOW) / RATE
    voices = [sum(np.sin(2 * np.pi * 110 * (1 + row / 3) * h * at) / h for h in range(1, 20)) for row in range(rows)]
    wave = np.stack(voices) * (np.sin(2 * np.pi * 3 * at) > 0) * 0.2
    return wave.astype(np.float32).reshape(rows, windows, WINDOW).transpose(1, 0, 2)


def by_hand(windows: np.ndarray) -> list[np.ndarray]:
    """Return the model's answer to each window, with the state carried from one window to the next."""
    session = onnxruntime.InferenceSession(str(model_file("silero_vad")))
    state, said = np.zeros((2, windows.shape[1], 128), np.float32), []
    for window in windows:
        output, state = session.run(None, {"input": window, "state": state, "sr": np.array(RATE, np.int64)})
        said.append(output)
    return said


def request(window: np.ndarray, model: str = "voice", **parameters: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="input", datatype="FP32", shape=window.shape)
    message.inputs.add(name="sr", datatype="INT64")
    message.raw_input_contents.extend([window.tobytes(), np.int64(RATE).tobytes()])
    tell(message.parameters, **parameters)
    return message


def output(response: pb.ModelInferResponse) -> np.ndarray:
    """Return the probability; checks that the state is not among the outputs."""
    assert [each.name for each in response.outputs] == ["output"]
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(tuple(response.outputs[0].shape))


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return np.allclose(np.stack(found), np.stack(expected), rtol=0, atol=2e-4)


def stateless(windows: np.ndarray) -> list[np.ndarray]:
    return [by_hand(window[None])[0] for window in windows]


@pytest.mark.parametrize("model", ["voice", "plain"])
@pytest.mark.parametrize("rows", [1, 3])
def test_sequence_answers_depend_on_earlier_windows(channel: grpc.Channel, model: str, rows: int) -> None:
    windows = sound(rows)
    said = []
    for index, window in enumerate(windows):
        place = {"sequence_start": index == 0, "sequence_end": index == len(windows) - 1}
        said.append(output(infer(channel, request(window, model, sequence_id=7, **place))))
    expected = by_hand(windows)
    assert close(said, expected)
    assert not close(expected, stateless(windows))  # otherwise the test would prove nothing


def test_sequences_on_one_stream_have_separate_states(channel: grpc.Channel) -> None:
    calls = {"one": sound(1, 10), "two": -0.3 * sound(1, 10)[::-1]}
    requests = [
        request(windows[index], sequence_id=name, sequence_start=index == 0)
        for index in range(10)
        for name, windows in calls.items()
    ]
    said: dict[str, list[np.ndarray]] = {"one": [], "two": []}
    responses = method(channel, "ModelStreamInfer")(iter(requests), timeout=60)
    for name, response in zip(list(calls) * 10, responses, strict=True):
        assert not response.error_message
        said[name].append(output(response.infer_response))
    for name, windows in calls.items():
        assert close(said[name], by_hand(windows))


def test_client_that_carries_the_state_itself_gets_the_state(channel: grpc.Channel) -> None:
    windows = sound()
    state, said = np.zeros((2, 1, 128), np.float32), []
    for window in windows:
        message = request(window)
        message.inputs.add(name="state", datatype="FP32", shape=state.shape)
        message.raw_input_contents.append(state.tobytes())
        answer = infer(channel, message)
        assert [each.name for each in answer.outputs] == ["output", "stateN"]
        said.append(np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(1, 1))
        state = np.frombuffer(answer.raw_output_contents[1], np.float32).reshape(2, 1, 128)
    assert close(said, by_hand(windows))


def refused(channel: grpc.Channel, message: pb.ModelInferRequest) -> str:
    code, words = refusal(infer, channel, message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    return words


def test_request_without_an_active_sequence_is_refused(channel: grpc.Channel) -> None:
    window = sound()[0]
    assert "sequence_id" in refused(channel, request(window))
    assert "was not started" in refused(channel, request(window, sequence_id=4711))
    infer(channel, request(window, sequence_id=8, sequence_start=True, sequence_end=True))
    assert "has ended" in refused(channel, request(window, sequence_id=8))
    infer(channel, request(window, sequence_id=9, sequence_start=True))
    time.sleep(1.5)  # a sequence may be idle for a second
    assert "idle too long" in refused(channel, request(window, sequence_id=9))


@pytest.mark.long
def test_sequence_survives_the_loss_of_its_engine_host() -> None:
    windows = sound()
    with Daemon(builds=False) as daemon, grpc.insecure_channel(daemon.unix) as channel:
        folder = daemon.models / "voice" / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model_file("silero_vad").read_bytes())
        (folder.parent / "edged.toml").write_text("sequence.idle_ms = 60000\n")
        daemon.ready("voice")
        said = []
        for index, window in enumerate(windows):
            said.append(output(infer(channel, request(window, sequence_id=7, sequence_start=index == 0))))
            if index in (3, 7):
                before = set(daemon.hosts())
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
                wait_for("another host serves", lambda before=before: set(daemon.hosts()) - before)
    assert close(said, by_hand(windows))
