"""Language models through a real daemon: OpenAI's client, NVIDIA's client, edged's client and command line, access,
adding and removing, and cameras whose frames are described."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import queue
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import numpy as np
import pytest

from edged.client.aio import AsyncClient
from edged.errors import Forbidden, InvalidInput, NotFound
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon, wait_for
from tests.tiny_language import ANSWER, COLOURS, write_genai, write_gguf

pytestmark = pytest.mark.heavy

pytest.importorskip("onnxruntime_genai", reason="ONNX Runtime GenAI has no wheel for this Python")
openai = pytest.importorskip("openai")

_SCHEMA = {
    "type": "object",
    "properties": {"person": {"type": "boolean"}, "where": {"type": "string", "maxLength": 12}},
    "required": ["person", "where"],
    "additionalProperties": False,
}
_CONFIG = """
[http]
listen = "localhost:0"
[zmq]
publish = "ipc://HOME/published"
[describe.yard]
camera = "yard"
model = "missing"
seconds = 0
score = 0.2
[describe.gate]
camera = "gate"
model = "sight"
seconds = 0.3
score = 0.2
every_seconds = 1
prompt = "What is it?"
"""


class LanguageDaemon(Daemon):
    """A daemon with language models."""

    def __init__(self) -> None:
        super().__init__("--model", f"shapes={MODEL_PATH}", builds=False, config=_CONFIG, endpoints=2)
        write_genai(self.models / "chat" / "1")
        write_genai(self.models / "sight" / "1", pictures=True)
        write_genai(self.models / "slow" / "1", slow=40)
        write_gguf(self.models / "small.gguf")

    @property
    def web(self) -> str:
        return next(each for each in self.addresses if each.startswith("http:"))

    def openai(self, **options: Any) -> Any:
        return openai.OpenAI(base_url=f"{self.web}/v1", api_key="none", max_retries=0, timeout=30, **options)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LanguageDaemon]:
    with LanguageDaemon() as found, found.client() as client:
        for name in ("chat", "sight", "slow", "small"):
            wait_for(name, lambda name=name: _state(client, name) == "ready", 90)  # type: ignore[misc]
        yield found
        assert found.stop() == 0


def _state(client: Any, name: str) -> str:
    return next((each.state for each in client.language_models() if each.name == name), "")


def _messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _picture(colour: str) -> bytes:
    bgr = {"red": (0, 0, 255), "green": (0, 255, 0), "blue": (255, 0, 0), "grey": (90, 90, 90)}[colour]
    return cv2.imencode(".jpg", np.full((48, 64, 3), bgr, np.uint8))[1].tobytes()


# -- OpenAI's protocol -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["chat", "small"])
def test_openai_client_gets_answer_and_usage(daemon: LanguageDaemon, model: str) -> None:
    client = daemon.openai()
    assert {"chat", "sight", "slow", "small"} <= {each.id for each in client.models.list()}
    found = client.chat.completions.create(model=model, messages=_messages("a red door"))
    colour = "red" if model == "chat" else "grey"
    assert found.choices[0].message.content == ANSWER.format(colour)
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens in (7, 8)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


@pytest.mark.parametrize("model", ["chat", "small"])
def test_openai_client_gets_a_stream(daemon: LanguageDaemon, model: str) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(daemon.openai().chat.completions.create(model=model, messages=_messages("a blue door"), **options))
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == ANSWER.format("blue" if model == "chat" else "grey")
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens in (7, 8)


def test_asynchronous_openai_client_gets_many_answers_at_once(daemon: LanguageDaemon) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{daemon.web}/v1", api_key="none", max_retries=0) as client:
            asked = (
                client.chat.completions.create(model="chat", messages=_messages(f"a {colour} car"))
                for colour in COLOURS
            )
            return [each.choices[0].message.content for each in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [ANSWER.format(colour) for colour in COLOURS]


def test_stream_that_is_closed_early_ends_the_work(daemon: LanguageDaemon) -> None:
    stream = daemon.openai().chat.completions.create(
        model="slow", messages=_messages("a red story"), max_tokens=400, stream=True
    )
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    began = time.monotonic()
    with daemon.client() as client:
        assert "".join(each.text for each in client.chat("slow", "a blue door")) == ANSWER.format("blue")
    assert time.monotonic() - began < 20  # far less than the rest of the story takes


@pytest.mark.parametrize("model", ["chat", "small"])
def test_answers_follow_a_schema(daemon: LanguageDaemon, model: str) -> None:
    client = daemon.openai()
    form = {"type": "json_schema", "json_schema": {"name": "seen", "strict": True, "schema": _SCHEMA}}
    for number in range(10):
        found = client.chat.completions.create(
            model=model, messages=_messages(f"question {number}"), response_format=form, temperature=0.5
        )
        assert found.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(found.choices[0].message.content), _SCHEMA)


def test_pictures_are_seen(daemon: LanguageDaemon) -> None:
    client = daemon.openai()
    for colour in COLOURS:
        url = f"data:image/jpeg;base64,{base64.b64encode(_picture(colour)).decode()}"
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        found = client.chat.completions.create(model="sight", messages=[{"role": "user", "content": content}])
        assert found.choices[0].message.content == ANSWER.format(colour)


def test_damaged_picture_is_refused_and_its_host_serves_on(daemon: LanguageDaemon) -> None:
    whole = _picture("red")
    for data in (b"\xff\xd8" + bytes(range(256)) * 20, whole[: len(whole) // 2], b"\x89PNG" + whole):
        content = [
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data).decode()}}
        ]
        before = _hosts(daemon)
        status, _ = _post(daemon.web, {"model": "sight", "messages": [{"role": "user", "content": content}]})
        assert status in (200, 400)  # a decoder may repair a cut picture
        assert _hosts(daemon) == before


def _hosts(daemon: LanguageDaemon) -> list[int]:
    return sorted(pid for pid, line in daemon.children().items() if "edged.host.language" in line)


def test_completion_continues_a_prompt_until_a_stop(daemon: LanguageDaemon) -> None:
    found = daemon.openai().completions.create(model="chat", prompt="The camera", stop=[" door"])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (" sees a grey", "stop")
    chunks = daemon.openai().completions.create(model="chat", prompt="The camera", stream=True)
    assert "".join(each.choices[0].text for each in chunks if each.choices) == " sees a grey door."


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"model": "missing"}, 404),
        ({"model": "shapes"}, 400),
        ({"messages": []}, 400),
        ({"messages": _messages("word " * 4000)}, 400),
        ({"messages": _messages("w" * (1 << 20))}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400),
        ({"messages": [{"role": "stranger", "content": "x"}]}, 400),
        ({"n": 3}, 400),
        ({"temperature": -1}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": -5}, 400),
        ({"max_completion_tokens": 0, "max_tokens": 5}, 400),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"minLength": 5, "maxLength": 3}}}},
            400,
        ),
        ({"tool_choice": {"function": None}, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400),
        ({"stop": ["a"] * 9}, 400),
        ({"response_format": {"type": "regex", "regex": "((("}}, 400),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "none"}}}}, 400),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_request_that_cannot_be_answered_gets_one_clear_error(
    daemon: LanguageDaemon, options: dict[str, Any], status: int, is_streamed: bool
) -> None:
    body = {"model": "chat", "messages": _messages("x"), "stream": is_streamed, **options}
    code, found = _post(daemon.web, body)
    assert code == status
    assert found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    assert _post(daemon.web, {"model": "chat", "messages": _messages("a red door")})[0] == 200


def test_openai_client_gets_one_model_and_errors_of_its_form(daemon: LanguageDaemon) -> None:
    with daemon.openai() as client:
        assert client.models.retrieve("chat").id == "chat"
        with pytest.raises(openai.NotFoundError, match="missing"):
            client.models.retrieve("missing")
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.embeddings.create(model="chat", input="x")


def _post(web: str, body: Any, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(web.removeprefix("http://"), timeout=30)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connection.request("POST", "/v1/chat/completions", data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


# -- Triton's protocol and edged's -------------------------------------------------------------------------------------


def _streamed(daemon: LanguageDaemon, text: str, is_streamed: bool, **inputs: Any) -> list[Any]:
    from tritonclient.grpc import InferenceServerClient, InferInput

    given: queue.Queue[Any] = queue.Queue()
    tensors = [InferInput("text_input", [1], "BYTES"), InferInput("stream", [1], "BOOL")]
    tensors[0].set_data_from_numpy(np.array([text.encode()], np.object_))
    tensors[1].set_data_from_numpy(np.array([is_streamed]))
    for name, value in inputs.items():
        is_flag = isinstance(value, bool)
        tensors.append(InferInput(name, [1], "BOOL" if is_flag else "BYTES"))
        tensors[-1].set_data_from_numpy(np.array([value], bool if is_flag else np.object_))
    found = []
    with InferenceServerClient(daemon.tcp) as client:
        client.start_stream(lambda result, error: given.put((result, error)))
        client.async_stream_infer("chat", tensors, request_id="7", enable_empty_final_response=True)
        while True:
            result, error = given.get(timeout=30)
            assert error is None, error
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            found.append(result)
        client.stop_stream()
    return found


def test_triton_client_streams_with_the_names_of_vllm(daemon: LanguageDaemon) -> None:
    parameters = json.dumps({"max_tokens": 6, "temperature": 0}).encode()
    found = _streamed(daemon, "The camera", True, sampling_parameters=parameters, return_finish_reason=True)
    assert b"".join(each.as_numpy("text_output")[0] for each in found) == b" sees a grey door."
    assert found[-1].as_numpy("finish_reason")[0] == b"stop"


def test_triton_client_gets_a_whole_answer_with_or_without_its_prompt(daemon: LanguageDaemon) -> None:
    (found,) = _streamed(daemon, "The camera", False)
    assert found.as_numpy("text_output")[0] == b"The camera sees a grey door."
    counts = {"exclude_input_in_output": True, "return_num_output_tokens": True}
    (found,) = _streamed(daemon, "The camera", False, **counts)
    assert found.as_numpy("text_output")[0] == b" sees a grey door."
    assert found.as_numpy("num_output_tokens")[0] in (5, 6)


def test_triton_client_reads_metadata_and_configuration(daemon: LanguageDaemon) -> None:
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(daemon.tcp) as client:
        assert client.is_model_ready("chat")
        assert client.get_model_metadata("chat").inputs[0].name == "text_input"
        assert client.get_model_config("chat").config.model_transaction_policy.decoupled


def test_edged_client_chats(daemon: LanguageDaemon) -> None:
    with daemon.client() as client:
        texts = list(client.chat("chat", "a green door"))
        assert "".join(each.text for each in texts) == ANSWER.format("green")
        assert (texts[-1].finish_reason, texts[-1].tokens > 0, texts[-1].prompt_tokens > 0) == ("stop", True, True)
        asked = [{"content": "What is it?", "pictures": [_picture("blue")]}]
        assert "".join(each.text for each in client.chat("sight", asked)) == ANSWER.format("blue")
        form = "".join(each.text for each in client.chat("chat", "x", json_schema=_SCHEMA))
        jsonschema.validate(json.loads(form), _SCHEMA)
        with pytest.raises(NotFound):
            list(client.chat("missing", "x"))
        with pytest.raises(InvalidInput):
            list(client.infer("chat", _picture("red")))  # type: ignore[call-overload]


async def test_asynchronous_edged_client_chats(daemon: LanguageDaemon) -> None:
    async with AsyncClient(daemon.unix) as client:
        texts = [each async for each in client.chat("chat", "a green door")]
        assert "".join(each.text for each in texts) == ANSWER.format("green")
        assert texts[-1].finish_reason == "stop"
        with pytest.raises(NotFound):
            [each async for each in client.chat("missing", "x")]


def test_command_line_lists_shows_and_chats(daemon: LanguageDaemon) -> None:
    def run(*words: str) -> str:
        command = [*daemon.command(*words), "--target", daemon.unix]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    assert run("chat", "chat", "a red door") == ANSWER.format("red") + "\n"
    assert json.loads(run("chat", "chat", "a red door", "--json"))["finish_reason"] == "stop"
    assert "language model (llama)" in run("models", "list")
    assert "tokens/s" in run("models", "show", "chat")
    events = [line for line in run("events").splitlines() if "serves model chat" in line]
    assert len(events) == 1, events
    hurried = subprocess.run(
        [*daemon.command("chat", "slow", "a red door", "--timeout", "0.01"), "--target", daemon.unix],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert hurried.returncode != 0
    assert "did not answer in time" in hurried.stderr
    doctor = subprocess.run(
        [*daemon.command("doctor", "chat", "-v"), "--target", daemon.unix, "--state", str(daemon.state)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "the model is a language model (llama) for onnxruntime_genai" in doctor.stdout, doctor.stdout + doctor.stderr
    assert "openvino_genai runs" not in doctor.stdout
    inspected = subprocess.run(
        daemon.command("inspect", str(daemon.models / "small.gguf")), check=False, capture_output=True, text=True
    )
    assert "small.gguf is a language model" in inspected.stderr


def test_describe_rule_that_fails_has_an_alarm(daemon: LanguageDaemon) -> None:
    daemon.ready("shapes")
    with daemon.client() as client:
        frames = ((time.sleep(0.05), Scene(7).frame(number)[0])[1] for number in range(40))
        assert sum(1 for _ in client.stream("shapes", frames, camera="yard")) > 0
        wait_for("its alarm", lambda: any("describe.yard" in each.message for each in client.status().alarms))


def test_model_is_added_replaced_and_removed_while_it_serves(daemon: LanguageDaemon, tmp_path: Path) -> None:
    source = write_genai(tmp_path / "source")
    with daemon.client() as client:
        added = client.add_model("added", source)
        assert (added.family.startswith("language model"), len(added.digest)) == (True, 64)
        wait_for("the added model", lambda: _state(client, "added") == "ready")
        assert "".join(each.text for each in client.chat("added", "a red door")) == ANSWER.format("red")
        client.set_model("added", {"language.output_tokens": "2"})
        wait_for("its setting", lambda: list(client.chat("added", "a red door"))[-1].finish_reason == "length")
        client.add_model("added", source, {"language.output_tokens": "3"}, replace=True)
        wait_for("its second version", lambda: any(m.version == "2" for m in client.models() if m.name == "added"))
        client.remove_model("added")
        wait_for("its removal", lambda: _state(client, "added") == "")
        with pytest.raises(NotFound):
            list(client.chat("added", "x"))


def test_folder_that_is_broken_is_refused_with_its_fault(daemon: LanguageDaemon, tmp_path: Path) -> None:
    source = write_genai(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    with daemon.client() as client:
        with pytest.raises(InvalidInput, match="tokenizer"):
            client.add_model("broken", source)
        shutil.copytree(source, daemon.models / "broken" / "1")
        try:
            wait_for("its alarm", lambda: any("tokenizer" in a.message for a in client.status().alarms))
            assert _state(client, "broken") == "refused"
        finally:
            shutil.rmtree(daemon.models / "broken")
        wait_for("the end of the alarm", lambda: not any("tokenizer" in a.message for a in client.status().alarms))


def test_killed_host_costs_no_waiting_request_and_no_frame(daemon: LanguageDaemon) -> None:
    daemon.ready("shapes")
    with daemon.client() as client:
        for pid in _hosts(daemon):
            os.kill(pid, signal.SIGKILL)
        picture = Scene(3).frame(0)[0]
        assert client.infer("shapes", picture) is not None
        assert "".join(each.text for each in client.chat("chat", "a red door")) == ANSWER.format("red")
        wait_for("all hosts", lambda: len(_hosts(daemon)) == 4)


def test_key_of_openai_client_may_be_a_token(daemon: LanguageDaemon) -> None:
    body = {"model": "chat", "messages": _messages("a red door")}
    assert _post(daemon.web, body, "none")[0] == 200  # clients always send a key
    assert _post(daemon.web, body, daemon.token("chats", "infer"))[0] == 200
    status, found = _post(daemon.web, body, "edged_" + "x" * 43)
    assert (status, found["error"]["code"]) == (401, "UNAUTHENTICATED")


def test_role_infer_is_needed(daemon: LanguageDaemon) -> None:
    import edged

    token = daemon.token("reader", "read")
    with edged.Client(daemon.tcp, credentials=edged.client.credentials.Credentials(token=token)) as client:
        assert client.language_models()
        del client
    environment = {**os.environ, "EDGED_ACCESS_LOOPBACK": "read"}
    guarded = Daemon(environment=environment, builds=False)
    write_genai(guarded.models / "chat" / "1")
    with guarded, edged.Client(guarded.tcp) as client:
        assert client.language_models() is not None
        with pytest.raises(Forbidden):
            list(client.chat("chat", "x"))


# -- cameras -----------------------------------------------------------------------------------------------------------


def test_frame_of_a_camera_is_described(daemon: LanguageDaemon) -> None:
    import zmq

    daemon.ready("shapes")
    scene = Scene(7)
    with zmq.Context() as context, context.socket(zmq.SUB) as published, daemon.client() as client:
        published.connect(f"ipc://{daemon.home}/published")
        published.subscribe("events/described")
        time.sleep(0.2)
        began = time.monotonic()
        frames = ((time.sleep(0.05), scene.frame(number)[0])[1] for number in range(120))
        answered = sum(1 for _ in client.stream("shapes", frames, camera="gate"))
        assert answered > 0
        assert published.poll(20_000)
        _, payload = published.recv_multipart()
        described = json.loads(payload)["described"]
        assert (described["camera"], described["rule"]) == ("gate", "gate")
        assert described["text"].startswith("The camera sees a ")
        texts = [event.what.text for event in client.events() if hasattr(event.what, "text")]
        assert 0 < len(texts) <= time.monotonic() - began + 1  # one per second, although every frame shows something


# -- other ways to serve -----------------------------------------------------------------------------------------------


def test_explicit_model_control_loads_and_unloads_a_language_model() -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    daemon = Daemon(builds=False, config='model_control = "explicit"\n')
    write_genai(daemon.models / "chat" / "1")
    (write_genai(daemon.models / "broken" / "1") / "tokenizer.json").unlink()
    with daemon, daemon.client() as client, InferenceServerClient(daemon.tcp) as triton:
        assert not triton.is_model_ready("chat")
        triton.load_model("chat")
        assert triton.is_model_ready("chat")
        assert {each.name: each.state for each in triton.get_model_repository_index().models}["chat"] == "READY"
        assert "".join(each.text for each in client.chat("chat", "a red door")) == ANSWER.format("red")
        assert triton.get_inference_statistics("chat").model_stats[0].inference_count == 1
        with pytest.raises(InferenceServerException, match="tokenizer"):
            triton.load_model("broken")
        triton.unload_model("chat")
        wait_for("its end", lambda: not triton.is_model_ready("chat"))
        with pytest.raises(NotFound):
            list(client.chat("chat", "x"))


def test_command_line_without_a_daemon_adds_and_lists_a_language_model(tmp_path: Path) -> None:
    daemon = Daemon(builds=False)
    source, state = write_genai(tmp_path / "source"), ["--state", str(daemon.state)]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = daemon.command("models", *words, *state)
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert run("add", "chat", str(source), "--set", "language.context=64").returncode == 0
    assert run("add", "chat", str(source)).returncode != 0
    (row,) = json.loads(run("list", "--json").stdout)["models"]
    assert (row["name"], row["state"], len(row["digest"])) == ("chat", "stored", 64)
    assert run("set", "chat", "thresholds.score=0.5").returncode != 0
    assert run("remove", "chat").returncode == 0
    shutil.rmtree(daemon.home)
