"""The engine host: a process that imports one backend, opens engines, and runs the jobs that the daemon's link sends.

Each engine has its own threads, so a slow model does not delay another.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import sys

import msgspec

from edged import errors, family_packages, process
from edged.backends import registry
from edged.confinement import confine
from edged.confinement.rules import Reach
from edged.decoding import ready
from edged.host.engine import EngineThreads
from edged.ipc import messages as m
from edged.ipc.arena import SharedView
from edged.ipc.frames import HostEnd


def serve(backend_name: str, daemon: HostEnd, arena: int, reach: Reach) -> None:
    """Serve the daemon's messages until the daemon closes the connection or ends."""
    confine.refuse_calls(reach)
    try:
        backend = registry.load(backend_name)
    except errors.EdgedError as error:
        daemon.send(m.Unfit(str(error)))
        return
    shared = SharedView(arena)
    decoder = msgspec.msgpack.Decoder(ready(m.ToHost))
    sessions: dict[int, EngineThreads] = {}
    daemon.send(m.Ready(backend.version()))
    while (data := daemon.receive()) is not None:
        order = decoder.decode(data)
        if isinstance(order, m.Open):
            sessions = {number: session for number, session in sessions.items() if not session.is_over}
            sessions[order.session] = EngineThreads(order, backend, shared, daemon.send)
        elif isinstance(order, m.Close):
            sessions.pop(order.session).submit(None)
        elif isinstance(order, m.Ping):
            daemon.send(m.Pong())
        elif isinstance(order, m.Stop):
            if (session := sessions.get(order.session)) is not None:
                session.stop(order.job)
        else:
            sessions[order.session].submit(order)


def main() -> None:
    """Run the host: `python -m edged.host.main PARENT_PID BACKEND SOCKET_FD ARENA_FD MEMORY_MB`. Standard input has the
    `Reach`, which lists the files that the process may use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the daemon, which stops its hosts
    faulthandler.enable()  # a crash leaves a traceback in the daemon's log
    parent, backend, daemon, arena, memory_mb = sys.argv[1:]
    if not process.die_with_parent(int(parent)):
        sys.exit(1)
    process.go_before_the_daemon(int(memory_mb))
    reach = Reach.parsed(sys.stdin.read())
    confine.confine_files(reach)
    family_packages.permit()
    serve(backend, HostEnd(socket.socket(fileno=int(daemon))), int(arena), reach)


if __name__ == "__main__":
    main()
