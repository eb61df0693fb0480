"""All methods, read from the descriptors, and good requests for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import cv2
import msgspec
import numpy as np
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from edged.proto import cameras_pb2 as cameras
from edged.proto import language_pb2 as language
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations
from edged.shapes import MODEL_PATH, Scene
from tests.integration import onnx_files
from tests.tiny_language import write_genai

# Models that stay, and one that commands may remove.
NUMBERS, TEXTS, SHAPES, VICTIM = "numbers", "texts", "shapes", "victim"
TWICE = "twice"  # a pipeline
CHATS = "chats"  # a language model
PICTURE: Final[bytes] = cv2.imencode(".jpg", cv2.resize(Scene(3).frame(0)[0], (160, 120)))[1].tobytes()
SEGMENT = "/edged-fuzz"  # in /dev/shm

_MODELS = (NUMBERS, TEXTS, SHAPES, TWICE, CHATS, VICTIM, "nobody", "")
_STAYING = ("nobody", VICTIM, "")  # for commands that remove models: never the models whose answers are checked
_TAKING = ("RemoveModel", "RepositoryModelUnload", "AddModel", "RepositoryModelLoad", "Evict")


class Method(msgspec.Struct, frozen=True):
    """A call: its `path` as in gRPC, the request type, and whether requests and responses are streams."""

    path: str
    request: type[Message]
    takes_many: bool
    gives_many: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def methods() -> list[Method]:
    """Return every method of every service of the daemon."""
    found = []
    for file in (inference, cameras, operations, language, health_pb2, reflection_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            found += _methods(service)
    return found


def words(method: Method) -> Mapping[str, Sequence[str]]:
    """Return valid values for text fields of a method's requests, by field name."""
    models = _STAYING if method.name in _TAKING else _MODELS
    return {
        **dict.fromkeys(("model", "model_name"), models),
        "name": (*models, "x", "y", "images", "region"),
        **dict.fromkeys(("model_version", "version"), ("", "1", "2", "0", "-1", "latest")),
        "camera": ("door", "yard", ""),
        "service": ("", "edged.v1.Cameras", *models),
        "engine": ("", "abcdef", "ab", "zz"),
        "key": (SEGMENT, "/nobody", "edged-fuzz"),
        "segment": (SEGMENT, "/nobody", "edged-fuzz"),
        "path": ("model.onnx", "weights.bin", "a/b", "picture.jpg"),
        "steps": ("opset", "opset=20", "ir", "dims", "sizes", "simplify", "nonsense"),
        "file_containing_symbol": ("inference.GRPCInferenceService", "edged.v1.Cameras", "nobody"),
        "file_by_filename": ("open_inference.proto", "nobody.proto"),
    }


def write_models(folder: Path) -> None:
    """Write the models that requests use into an empty repository."""
    onnx_files.identity(folder / f"{NUMBERS}.onnx", "FP32")
    onnx_files.identity(folder / f"{TEXTS}.onnx", "BYTES")
    (folder / f"{SHAPES}.onnx").write_bytes(MODEL_PATH.read_bytes())
    write_victim(folder)
    write_genai(folder / CHATS / "1")


def write_victim(folder: Path) -> None:
    onnx_files.scale(folder / f"{VICTIM}.onnx", 2.0)


def truth(rows: int = 1) -> inference.ModelInferRequest:
    """Return a request whose right answer is its own bytes."""
    values = np.linspace(-1, 1, 4 * rows, dtype=np.float32).tobytes()
    tensor = inference.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[rows, 4])
    return inference.ModelInferRequest(model_name=NUMBERS, id="truth", inputs=[tensor], raw_input_contents=[values])


def good(method: Method) -> list[Message]:
    """Return requests that a method accepts, at least in the right order."""
    typed, text = truth(), inference.ModelInferRequest(model_name=TEXTS)
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    text.inputs.add(name="x", datatype="BYTES", shape=[1, 4])
    text.raw_input_contents.append(b"\x02\0\0\0hi" * 4)
    options = truth(2)
    options.outputs.add(name="y").parameters["classification"].int64_param = 2
    options.parameters["priority"].int64_param = 1
    options.parameters["timeout"].int64_param = 5_000_000
    shared = truth()
    del shared.raw_input_contents[:]
    shared.inputs[0].parameters["shared_memory_region"].string_param = "region"
    shared.inputs[0].parameters["shared_memory_byte_size"].int64_param = 16
    pixels = cameras.RawImage(format=cameras.BGR, width=16, height=12, data=bytes(16 * 12 * 3))
    sound = cameras.Samples(format=cameras.Samples.S16, rate=16000, data=bytes(1024))
    ring = cameras.SharedImage(segment=SEGMENT, offset=64, stamp=1, size=len(PICTURE))
    options = cameras.StreamOptions(max_fps=1000, weight=2, mode=cameras.StreamOptions.EVERY_FRAME, track=False)
    setting = inference.TraceSettingRequest(model_name=NUMBERS)
    setting.settings["trace_level"].value.append("TIMESTAMPS")
    logging = inference.LogSettingsRequest()
    logging.settings["log_verbose_level"].uint32_param = 0
    load = inference.RepositoryModelLoadRequest(model_name=VICTIM)
    load.parameters["config"].string_param = '{"max_batch_size": 0}'
    asked = language.ChatMessage(role="user", content="a red door", pictures=[])
    known: list[Message] = [
        *(truth(), typed, text, options, shared, setting, logging, load),
        cameras.Frame(camera="door", model=SHAPES, sequence=1, encoded=PICTURE),
        cameras.Frame(camera="yard", model=SHAPES, sequence=2, raw=pixels, options=options, rotation=90),
        cameras.Frame(camera="door", model=SHAPES, shared=ring, region=cameras.Region(width=10, height=10)),
        cameras.Frame(camera="door", model=NUMBERS, encoded=PICTURE, thresholds=cameras.Thresholds(score=0.5)),
        cameras.Frame(camera="door", model=NUMBERS, samples=sound),
        operations.AddModelRequest(header=operations.ModelHeader(name="added")),
        operations.AddModelRequest(file=operations.ModelFile(path="model.onnx", size=64)),
        operations.AddModelRequest(chunk=bytes(64)),
        operations.SelectEngines(selector=operations.Selector(model=VICTIM)),
        operations.RebuildRequest(selector=operations.Selector(model=VICTIM)),
        operations.VerifyRequest(selector=operations.Selector(model=VICTIM)),
        inference.SystemSharedMemoryRegisterRequest(name="region", key=SEGMENT, byte_size=4096),
        inference.ModelMetadataRequest(name=NUMBERS, version="1"),
        inference.ModelMetadataRequest(name=CHATS),
        language.ChatRequest(model=CHATS, messages=[asked], max_tokens=8, stop=["door"], temperature=0.5, seed=1),
        language.ChatRequest(model=CHATS, prompt="The camera", regex="(yes|no)"),
        language.ChatRequest(model=CHATS, messages=[asked], json_schema='{"enum": ["yes", "no"]}'),
        inference.RepositoryModelUnloadRequest(model_name=VICTIM),
        reflection_pb2.ServerReflectionRequest(list_services="*"),
    ]
    return [each for each in known if isinstance(each, method.request)]


def _methods(service: ServiceDescriptor) -> list[Method]:
    return [
        Method(
            f"/{service.full_name}/{each.name}",
            GetMessageClass(each.input_type),
            each.client_streaming,
            each.server_streaming,
        )
        for each in service.methods
    ]
