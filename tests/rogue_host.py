"""An engine host under the control of a hostile model. The name of its backend says what it does on a request."""

from __future__ import annotations

import socket
import sys

import msgspec

from edged.ipc import messages as m
from edged.ipc.frames import HEADER, HostEnd


def misbehave(how: str, daemon: HostEnd, connection: socket.socket, order: m.Infer) -> None:
    if how == "sends garbage":
        connection.sendall(HEADER.pack(8, 0) + b"nonsense")
    elif how == "floods":
        for _ in range(100_000):
            daemon.send(m.Pong())
    elif how == "announces too many outputs":
        connection.sendall(HEADER.pack(3, 1 << 40))
    elif how == "closes a busy session":
        daemon.send(m.Closed(order.session))
    elif how == "fails with an unknown error":
        daemon.send(m.JobFailed(order.job, "annotations", "odd"))
    elif how == "fails at a picture with an unknown error":
        daemon.send(m.Detected(order.job, (m.Seen(error="annotations", message="odd"),)))
    elif how == "takes for ever":
        daemon.send(m.Answer(order.job, (), m.Times(infer_ms=float("inf"))))
    else:
        assert how == "answers twice"
        for _ in range(2):
            daemon.send(m.JobFailed(order.job, "InvalidInput", "no"))
            daemon.send(m.Answer(order.job, (), m.Times()))


def main() -> None:
    """Run with the arguments of `edged.host.main`."""
    _, _, how, fd, *_ = sys.argv
    connection = socket.socket(fileno=int(fd))
    daemon, decoder = HostEnd(connection), msgspec.msgpack.Decoder(m.ToHost)
    daemon.send(m.Ready("1"))
    while (data := daemon.receive()) is not None:
        order = decoder.decode(data)
        if isinstance(order, m.Open):
            daemon.send(m.Opened(order.session))
        elif isinstance(order, m.Ping):
            daemon.send(m.Pong())
        elif isinstance(order, m.Infer):
            misbehave(how, daemon, connection, order)


if __name__ == "__main__":
    main()
