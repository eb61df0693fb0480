"""The daemon: whether it answers, is the one that this program belongs to, has its hosts, and raises alarms."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from edged.api_types import AlarmInfo, DeviceInfo, EngineInfo, ModelInfo, StatusInfo
from edged.client import address
from edged.client.client import Client
from edged.device.fingerprint import Change, Fingerprint
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.errors import EdgedError
from edged.serving.host_process import HOST_MODULE
from edged.version import __version__

_UNIX = "unix:"
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CALL_SECONDS = 10.0
_HOST = re.compile(rf"-m\0{re.escape(HOST_MODULE)}\0(\d+)\0(\w+)\0")


class DaemonState(msgspec.Struct, frozen=True):
    """What a daemon says of itself."""

    status: StatusInfo
    models: tuple[ModelInfo, ...]
    engines: tuple[EngineInfo, ...]
    device: DeviceInfo


class Socket(msgspec.Struct, frozen=True):
    """The daemon's socket: who listens, as far as the kernel tells, why it lets nobody in (empty where it does)."""

    path: str
    exists: bool
    mode: int = 0
    pid: int | None = None
    uid: int | None = None
    refusal: str = ""


def socket_of(target: str) -> Socket | None:
    """The socket behind a gRPC target; None where it is none of this machine's."""
    if not target.startswith(_UNIX):
        return None
    path = target.removeprefix(_UNIX)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return Socket(path, os.path.lexists(path), refusal=error.strerror or str(error))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(2.0)
        try:
            end.connect(path)
            raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            return Socket(path, True, mode, refusal=error.strerror or str(error))
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    # A daemon in another pid namespace is number 0 here.
    return Socket(path, True, mode, pid or None, uid)


def resolve(target: str | None) -> str:
    """The gRPC target that is meant; InvalidInput where there can be none such."""
    return address.resolve(target)


def query(target: str) -> DaemonState:
    """Asks everything; EdgedError when nobody answers."""
    with Client(target, timeout=_CALL_SECONDS) as client:
        return DaemonState(client.status(), tuple(client.models()), tuple(client.engines()), client.device())


def hosts(root: Root, daemon: int) -> dict[str, int] | None:
    """How many host processes a daemon has, by backend; None where processes cannot be seen."""
    if not root.exists(f"proc/{daemon}/cmdline"):
        return None
    found: dict[str, int] = {}
    for path in root.glob("proc/[0-9]*/cmdline"):
        # Not `Root.read`, which takes the NULs from the end; the last argument of a host ends with one, too.
        match = _HOST.search(root.read(path) or "")
        if match and int(match[1]) == daemon:
            found[match[2]] = found.get(match[2], 0) + 1
    return found


def silent(target: str, error: EdgedError, known: Socket | None, *, is_named: bool) -> Check:
    """Judges that nobody answers: it is wrong where a daemon was named, or where its socket is there."""
    remedy = "start it: systemctl start edged, or edged serve; its log may say why it ended: journalctl -u edged"
    if not address.is_here(target):
        remedy = "see whether the box is up, its edged listens at that address and its firewall lets this machine in"
    if known is not None and "ermission" in known.refusal:
        said = f"this user may not connect to {known.path}"
        return wrong(Name.DAEMON, said, f"join the group that owns it: stat {known.path}", target)
    if is_named or (known is not None and known.exists):
        return wrong(Name.DAEMON, str(error), remedy, target)
    return unknown(Name.DAEMON, "no daemon runs on the default socket", target, "start one: edged serve")


def judge(heard: DaemonState, target: str) -> Iterator[Check]:
    """Judges what a daemon says of itself; a line for each of its alarms."""
    status = heard.status
    said = f"it answers; {status.serving} of {status.models} models serve"
    yield ok(Name.DAEMON, said, target)
    if status.version == __version__:
        yield ok(Name.DAEMON_VERSION, f"daemon and this program are {__version__}")
    else:
        said = f"the daemon is edged {status.version} and this program {__version__}"
        yield warning(Name.DAEMON_VERSION, said, "restart the daemon: systemctl restart edged")
    if status.paused:
        yield wrong(
            Name.DAEMON, f"it builds nothing: {status.paused}", "see the checks of folders and disk space", target
        )
    yield from alarms(status.alarms)


def alarms(raised: Collection[AlarmInfo]) -> Iterator[Check]:
    """Judges alarms: each of them is something wrong now."""
    for alarm in raised:
        about = " ".join(filter(None, (alarm.kind, alarm.model, alarm.engine[:12])))
        named = f"edged models show {alarm.model}" if alarm.model else "edged status"
        yield wrong(Name.ALARM, alarm.message, f"see: {named}", about)
    if not raised:
        yield ok(Name.ALARM, "none is raised")


def judge_facts(of_daemon: DeviceInfo, here: Fingerprint) -> Check:
    """Judges whether a daemon on this machine knows the box as it is."""
    changes: tuple[Change, ...] = Fingerprint(of_daemon.facts).diff(here)
    if not changes:
        return ok(Name.DAEMON_FACTS, "the daemon knows the box as it is")
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    said = f"the daemon knows other facts: {'; '.join(map(str, changes[:2]))}{more}"
    remedy = "edged device refresh; where it stays so, daemon and program run in different environments"
    return warning(Name.DAEMON_FACTS, said, remedy)


def judge_socket(known: Socket | None, target: str) -> Check:
    """Judges who may connect."""
    if known is None:
        return unknown(Name.SOCKET, "not applicable: it is reached by the network", target)
    if known.refusal:
        remedy = "start the daemon; where it runs, remove the socket first and let it make a new one"
        return wrong(Name.SOCKET, f"{known.path} cannot be connected to: {known.refusal}", remedy, known.path)
    if not stat.S_ISSOCK(known.mode):
        return wrong(Name.SOCKET, "it is no socket", f"rm {known.path}, and restart the daemon", known.path)
    said = f"mode {stat.S_IMODE(known.mode):o}"
    if known.mode & stat.S_IWOTH and not _is_private(Path(known.path).parent):
        return warning(
            Name.SOCKET, f"{said}: every user of this machine may connect", f"chmod o-w {known.path}", known.path
        )
    return ok(Name.SOCKET, said, known.path)


def judge_hosts(found: dict[str, int] | None, models: Iterable[ModelInfo]) -> Iterator[Check]:
    """Judges whether each backend that serves has a process. `found` is None where processes cannot be seen."""
    needed: dict[str, list[str]] = {}
    for model in models:
        if model.state == "ready" and model.backend:
            needed.setdefault(model.backend, []).append(model.name)
    if found is None:
        yield unknown(Name.HOSTS, "the daemon's processes cannot be seen from here")
    elif not needed:
        yield ok(Name.HOSTS, "no model serves, so none is needed")
    else:
        for backend, names in needed.items():
            if found.get(backend):
                yield ok(Name.HOSTS, f"{found[backend]} running, for {', '.join(names)}", backend)
            else:
                said = f"no host of {backend} runs, which {', '.join(names)} are served by"
                yield wrong(Name.HOSTS, said, "see the daemon's log: journalctl -u edged", backend)


def _is_private(folder: Path) -> bool:
    """Whether others may not even enter the socket's folder."""
    try:
        return not folder.stat().st_mode & stat.S_IXOTH
    except OSError:
        return True
