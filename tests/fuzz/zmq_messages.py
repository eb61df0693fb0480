"""Multipart messages over ZeroMQ, for the endpoints of frames and of Frigate."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import zmq

from tests.fuzz import PATIENCE, goods
from tests.fuzz.spoiling import spoiled
from tests.fuzz.tally import Tally

if TYPE_CHECKING:
    from tests.fuzz.live import FuzzedDaemon

_PATIENCE_MS = int(PATIENCE * 1000)
_DEEP = b'{"other":' + b"[" * 4000
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**32,
    2**63,
    2**64,
    1e308,
    "",
    "x",
    "rgb",
    [],
    {},
    [1],
    "a" * 5000,
)


def frames(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send frames with corrupted headers or pictures, from peers that reconnect now and then."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = _peer(context, zmq.DEALER, daemon.frames)
    for number in range(count):
        tally.messages["ZeroMQ"] += 1
        header: dict[str, Any] = {"camera": "door", "sequence": number, "model": goods.SHAPES, "format": ""}
        header |= random.choice(
            ({}, {"thresholds": {"score": 0.5}}, {"region": {"x": 1, "width": 9}}, {"rotation": 90})
        )
        if random.random() < 0.5:
            header[random.choice([*header, "options", "shared", "width"])] = random.choice(_VALUES)
        parts = [json.dumps(header).encode(), goods.PICTURE]
        _change(random, parts)
        peer.send_multipart(parts)
        while peer.poll(0):
            tally.statuses["ZeroMQ"]["answers"] += bool(peer.recv_multipart())
        if number % 50 == 49:
            peer.close(0)
            peer = _peer(context, zmq.DEALER, daemon.frames)
    peer.close(0)
    asking = _peer(context, zmq.DEALER, daemon.frames)
    good = {"camera": "last", "sequence": 1, "model": goods.SHAPES}
    asking.send_multipart([json.dumps(good).encode(), goods.PICTURE])
    if not asking.poll(_PATIENCE_MS) or b'"error"' in asking.recv_multipart()[0]:
        tally.fail("the frames endpoint does not answer a good frame any more")
    asking.close(0)
    context.term()


def frigate(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send corrupted requests of Frigate's detector. Each must get an answer of any kind: REQ sockets wait for it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = _peer(context, zmq.REQ, daemon.frigate)
    for _ in range(count):
        tally.messages["Frigate"] += 1
        header: dict[str, Any] = random.choice(
            (
                {"model_request": True, "model_name": "shapes.onnx"},
                {"shape": [1, 64, 64, 3], "dtype": "uint8", "model_type": "yologeneric"},
                {"shape": [1, 3, 64, 64], "dtype": "uint8", "model_type": "", "newer": []},
                {"model_data": True, "model_name": random.choice(("../x", "", "a\0b", "sent.onnx"))}
                if random.random() < 0.05
                else {"model_request": False},
            )
        )
        header = dict(header)
        if random.random() < 0.5:
            header[random.choice(list(header))] = random.choice(_VALUES)
        parts = [json.dumps(header).encode()]
        if "model_request" not in header:
            parts.append(bytes(random.choice((64 * 64 * 3, 0, 1, 100))))
        _change(random, parts)
        peer.send_multipart(parts)
        if not peer.poll(_PATIENCE_MS):
            tally.fail("Frigate's request got no answer", repr([part[:300] for part in parts]))
            break
        tally.statuses["Frigate"][f"{len(peer.recv_multipart()[0])} bytes"[:12]] += 1
    peer.close(0)
    context.term()


def _change(random: Random, parts: list[bytes]) -> None:
    """Corrupt bytes, add or replace a part, or change nothing."""
    what = random.random()
    if what < 0.3:
        at = random.randrange(len(parts))
        parts[at] = spoiled(random, parts[at])
    elif what < 0.35:
        parts.append(b"more")
    elif what < 0.4:
        del parts[-1]
        parts.append(b"")
    elif what < 0.43:
        parts[0] = _DEEP


def _peer(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    found = context.socket(kind)
    found.setsockopt(zmq.LINGER, 0)
    found.setsockopt(zmq.SNDTIMEO, _PATIENCE_MS)
    found.connect(address)
    return found
