"""A daemon whose `Detect` handler is a function of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from edged.proto import cameras_pb2 as pb

Detect = Callable[[Iterator[pb.Frame], grpc.ServicerContext], Iterator[pb.Result]]
DetectOne = Callable[[pb.Frame, grpc.ServicerContext], pb.Result]


def answer(frame: pb.Frame, **more: Any) -> pb.Result:
    return pb.Result(camera=frame.camera, sequence=frame.sequence, width=64, height=48, age_ms=1, **more)


class ScriptedDaemon:
    """The server. `frames` has the frames of all Detect calls."""

    def __init__(self, target: str, detect: Detect, detect_one: DetectOne | None = None) -> None:
        self.frames: list[pb.Frame] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._detect = detect
        coding = pb.Frame.FromString, pb.Result.SerializeToString
        methods = {"Detect": grpc.stream_stream_rpc_method_handler(self._call, *coding)}
        if detect_one is not None:
            methods["DetectOne"] = grpc.unary_unary_rpc_method_handler(detect_one, *coding)
        handler = grpc.method_handlers_generic_handler("edged.v1.Cameras", methods)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(target)

    def __enter__(self) -> ScriptedDaemon:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait(10)

    def _call(self, frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
        def noted() -> Iterator[pb.Frame]:
            for frame in frames:
                self.frames.append(frame)
                yield frame

        yield from self._detect(noted(), context)
