"""Endless header blocks, and requests for unknown models."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

import grpc

from edged.proto import open_inference_pb2 as pb
from tests.attack.abuse import Abuse, Target
from tests.fuzz import http2
from tests.waiting import together

_CONNECTIONS = 8


def _continuations(piece: bytes) -> Callable[[Target, float], None]:
    """Send headers that continue in CONTINUATION frames for as long as the daemon reads them."""

    def work(target: Target, until: float) -> None:
        def client(number: int) -> None:
            frame = http2.frame(http2.CONTINUATION, 0, 1, piece)
            while time.monotonic() < until:
                with contextlib.suppress(OSError), http2.greeted(target.tcp) as connection:
                    connection.sendall(http2.call(1, "/a/b", flags=0))
                    while time.monotonic() < until:
                        connection.sendall(frame * 4)
                time.sleep(0.01)

        together(client, _CONNECTIONS)

    return work


def _unknown_models(target: Target, until: float) -> None:
    """Ask whether an unknown model is ready, as fast as the daemon answers."""

    def client(number: int) -> None:
        with grpc.insecure_channel(target.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            ready = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
            for count in itertools.count():
                if time.monotonic() > until:
                    return
                with contextlib.suppress(grpc.RpcError):
                    ready(pb.ModelReadyRequest(name=f"unknown{count}").SerializeToString(), timeout=10)

    together(client, 4)


_FIELD = http2.block([(b"x-a", b"v" * 60)])

ABUSES = (
    Abuse("endless headers, many fields", _continuations(_FIELD * 200), goal=None),
    Abuse("endless headers, one value", _continuations(b"v" * 16000), goal=None),
    Abuse("readiness of unknown models", _unknown_models),
)
