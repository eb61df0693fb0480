"""Checks of the daemon: whether the daemon answers, whether it has this program's version, who may connect to its
socket, whether its facts are current, whether each serving backend has a host process, and which alarms are raised."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from edged.api_types import AlarmInfo, DeviceInfo, EngineInfo, ModelInfo, StatusInfo
from edged.client import address
from edged.client.client import Client
from edged.device.fingerprint import Fingerprint
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.engines.report import LANGUAGE
from edged.errors import EdgedError
from edged.serving.host_process import HOST_MODULE
from edged.version import __version__

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CALL_SECONDS = 10.0
_HOST = re.compile(rf"-m\0{re.escape(HOST_MODULE)}\0(\d+)\0(\w+)\0")


class DaemonState(msgspec.Struct, frozen=True):
    """A daemon's report about itself."""

    status: StatusInfo
    models: tuple[ModelInfo, ...]
    engines: tuple[EngineInfo, ...]
    device: DeviceInfo

    @classmethod
    def query(cls, target: str) -> DaemonState:
        """Ask a daemon for its state. Raises EdgedError if no daemon answers."""
        with Client(target, timeout=_CALL_SECONDS) as client:
            return cls(client.status(), tuple(client.models()), tuple(client.engines()), client.device())


class Socket(msgspec.Struct, frozen=True):
    """The daemon's socket. `pid` is the listening process, None if the kernel does not report it. `refusal` says why
    connecting to the socket fails; empty if it succeeds."""

    path: str
    exists: bool
    mode: int = 0
    pid: int | None = None
    refusal: str = ""

    @property
    def is_forbidden(self) -> bool:
        """Whether this user has no permission to connect."""
        return "ermission" in self.refusal

    @classmethod
    def of(cls, target: str) -> Socket | None:
        """Connect to the socket of a gRPC target and describe it; return None for a network target."""
        if not target.startswith(address.UNIX):
            return None
        path = target.removeprefix(address.UNIX)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            return cls(path, os.path.lexists(path), refusal=error.strerror or str(error))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(2.0)
            try:
                end.connect(path)
                raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError as error:
                return cls(path, True, mode, refusal=error.strerror or str(error))
        pid, _, _ = _CREDENTIALS.unpack(raw)
        return cls(path, True, mode, pid or None)  # 0 if the daemon is in another pid namespace


def silence(target: str, error: EdgedError, known: Socket | None, *, is_named: bool) -> Check:
    """Return the check of a daemon that does not answer. The result is `wrong` if the user named the daemon, or if its
    socket exists and the user may connect. Otherwise the result is `unknown`."""
    if known is not None and known.is_forbidden:
        message = f"this user has no permission to connect to {known.path}"
        remedy = f"use sudo, or join the socket's group; to see its name: stat -c %G {known.path}"
        if is_named:
            return wrong(Name.DAEMON, message, remedy, target)
        return unknown(Name.DAEMON, message, target, remedy)
    if not is_named and (known is None or not known.exists):
        return unknown(Name.DAEMON, "no daemon runs on the default socket", target, "start the daemon: edged serve")
    if address.is_here(target):
        remedy = "start the daemon: systemctl start edged, or edged serve; to see why the daemon ended: edged logs"
    else:
        remedy = "check that the box is up, that edged listens at this address there, and that no firewall blocks it"
    return wrong(Name.DAEMON, str(error), remedy, target)


def status(state: DaemonState, target: str) -> Iterator[Check]:
    """Check a daemon's report: its version, whether builds are paused, and each alarm."""
    reported = state.status
    yield ok(Name.DAEMON, f"the daemon answers; {reported.serving} of {reported.models} models serve", target)
    if reported.version == __version__:
        yield ok(Name.DAEMON_VERSION, f"the daemon and this program both have version {__version__}")
    else:
        message = f"the daemon has version {reported.version}, but this program has version {__version__}"
        yield warning(Name.DAEMON_VERSION, message, "restart the daemon: systemctl restart edged")
    if reported.paused:
        remedy = "see the results of the checks state_folder, cache_folder and disk_space"
        yield wrong(Name.DAEMON, reported.paused, remedy, target)
    yield from alarms(reported.alarms)


def alarms(raised: Collection[AlarmInfo]) -> Iterator[Check]:
    """Yield a check with the result `wrong` for each raised alarm. Without alarms, yield one check that is `ok`."""
    for alarm in raised:
        about = " ".join(filter(None, (alarm.kind, alarm.model, alarm.engine[:12])))
        command = f"edged models show {alarm.model}" if alarm.model else "edged status"
        yield wrong(Name.ALARM, alarm.message, f"see: {command}", about)
    if not raised:
        yield ok(Name.ALARM, "no alarm is raised")


def facts(of_daemon: DeviceInfo, here: Fingerprint) -> Check:
    """Check whether a daemon on this machine knows the box's current facts."""
    changes = Fingerprint(of_daemon.facts).diff(here)
    if not changes:
        return ok(Name.DAEMON_FACTS, "the daemon knows the box's current drivers, libraries and devices")
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    message = f"the daemon's facts about the box are not current: {'; '.join(map(str, changes[:2]))}{more}"
    remedy = "run: edged device refresh; if facts still differ, the daemon and this program have different environments"
    return warning(Name.DAEMON_FACTS, message, remedy)


def connections(known: Socket | None, target: str) -> Check:
    """Check who may connect to the socket."""
    if known is None:
        return unknown(Name.SOCKET, "not applicable: the daemon is reached over the network", target)
    if known.is_forbidden:
        return unknown(Name.SOCKET, "not checked: this user has no permission to connect", known.path)
    if known.refusal:
        remedy = "start the daemon; if it runs already: systemctl restart edged.socket edged-operate.socket edged"
        return wrong(Name.SOCKET, f"cannot connect to {known.path}: {known.refusal}", remedy, known.path)
    if not stat.S_ISSOCK(known.mode):
        return wrong(Name.SOCKET, "the file is not a socket", f"rm {known.path}, and restart the daemon", known.path)
    message = f"the socket has mode {stat.S_IMODE(known.mode):o}"
    if known.mode & stat.S_IWOTH and not _is_private(Path(known.path).parent):
        message += ": every user of this machine can connect"
        return warning(Name.SOCKET, message, f"chmod o-w {known.path}", known.path)
    return ok(Name.SOCKET, message, known.path)


def _is_private(folder: Path) -> bool:
    """Whether other users cannot enter the socket's folder."""
    try:
        return not folder.stat().st_mode & stat.S_IXOTH
    except OSError:
        return True


def find_hosts(root: Root, daemon: int) -> Counter[str] | None:
    """Return the number of host processes of each backend; None if processes cannot be seen. `daemon` is the daemon's
    process id."""
    if not root.exists(f"proc/{daemon}/cmdline"):
        return None
    # Every argument ends with NUL, also the last one.
    lines = (_HOST.search(root.read(path) or "") for path in root.glob("proc/[0-9]*/cmdline"))
    return Counter(found[2] for found in lines if found and int(found[1]) == daemon)


def hosts(found: Mapping[str, int] | None, models: Iterable[ModelInfo]) -> Iterator[Check]:
    """Check that each serving backend has a host process. `found` is the result of `find_hosts`."""
    needed: dict[str, list[str]] = {}
    for model in models:
        if model.state == "ready" and model.backend and not model.family.startswith(LANGUAGE):
            needed.setdefault(model.backend, []).append(model.name)
    if found is None:
        yield unknown(Name.HOSTS, "the daemon's processes cannot be seen from here")
    elif not needed:
        yield ok(Name.HOSTS, "no engine host is needed, because no model with an engine serves")
    else:
        for backend, names in needed.items():
            if found.get(backend):
                yield ok(Name.HOSTS, f"engine hosts running: {found[backend]}, for {', '.join(names)}", backend)
            else:
                message = f"no engine host of {backend} runs, but these models need one: {', '.join(names)}"
                yield wrong(Name.HOSTS, message, "see the daemon's log: edged logs", backend)
