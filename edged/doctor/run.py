"""Runs all checks of a box and its models, and makes the report."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec

from edged.config import Engines
from edged.confinement import confine
from edged.device.fingerprint import Fingerprint, probe
from edged.device.root import Root
from edged.doctor import daemon, folders, hardware, system
from edged.doctor.check import Check, Examination, Name, Report, Step, Tell, in_thread, ok, plain, unknown, warning
from edged.doctor.daemon import DaemonState, Socket
from edged.doctor.hardware import User
from edged.doctor.models import ModelChecks, StoreView
from edged.doctor.runtimes import Runtimes, runtime_packages
from edged.errors import EdgedError, InvalidInput, Unsupported
from edged.formatting import many

_PROBE_SECONDS = 30.0
_ORDER = {name: rank for rank, name in enumerate(Name)}
_OF_THIS_BOX = "runtimes, extras, limits, folders, daemon and models: not available for a recorded box"
# The user of a recorded box is unknown; root may use every node.
_ROOT = User(0, frozenset((0,)), "root")


class CheckOptions(msgspec.Struct, frozen=True):
    """The scope of the checks. `model` selects one model by name or file; an empty text selects all.

    `target` is the daemon to ask, empty for none. `is_named` means that the user named the daemon, so it must answer.
    `seconds` limits all checks together. `models` are the models of a configuration, by name. `with_models` says
    whether models are checked. Of the model families in other packages, models may use only those in `families`.
    """

    state: Path
    cache: Path
    target: str = ""
    is_named: bool = False
    model: str = ""
    root: Path = Path("/")
    seconds: float = 300.0
    engines: Engines = Engines()
    arena_mb: int = 512
    models: dict[str, Path] = {}
    with_models: bool = True
    families: tuple[str, ...] = ()


async def run_checks(wanted: CheckOptions, tell: Tell) -> Report:
    """Run all checks; `tell` is called with each step when it begins. Raises InvalidInput if the selected model does
    not exist."""
    examination = Examination(asyncio.get_running_loop().time() + wanted.seconds, tell)
    root = Root(wanted.root)
    fingerprint = await _fingerprint(wanted.root)
    if root.is_live:
        checks = await _check_live(wanted, root, fingerprint, examination)
    else:
        checks = await examination.run(_box_steps(root, fingerprint, _ROOT))
        examination.left_out.append(_OF_THIS_BOX)
    checks.sort(key=lambda check: _ORDER[check.name])
    return Report(tuple(checks), tuple(examination.left_out))


async def _fingerprint(root: Path) -> Fingerprint:
    try:
        return await asyncio.wait_for(in_thread(lambda: probe(root)), _PROBE_SECONDS)
    except asyncio.TimeoutError:
        raise Unsupported(
            f"cannot read the facts of this box within {_PROBE_SECONDS:g} s; perhaps a driver hangs, see: journalctl -k"
        ) from None


async def _check_live(
    wanted: CheckOptions, root: Root, fingerprint: Fingerprint, examination: Examination
) -> list[Check]:
    socket = await in_thread(lambda: Socket.of(wanted.target)) if wanted.target else None
    state = await _query(wanted.target, socket) if wanted.target else None
    pid = socket.pid if socket is not None else None
    user = (User.of_process(root, pid) if pid is not None else None) or User.current()
    runtimes = Runtimes(fingerprint.facts)
    with tempfile.TemporaryDirectory(prefix="edged-doctor-") as folder:
        scratch = Path(folder)
        view = await in_thread(
            lambda: StoreView(wanted.state, wanted.cache, fingerprint, wanted.engines, wanted.models)
        )
        reported = state if isinstance(state, DaemonState) else None
        models = ModelChecks(view, reported, runtimes, fingerprint, scratch, wanted.model, wanted.families)
        if wanted.model and not models.names:
            raise InvalidInput(f"no model or file is named {wanted.model!r}; the models are in {view.repository.root}")
        steps = [
            *_box_steps(root, fingerprint, user),
            *_live_steps(wanted, pid, user, view),
            *runtimes.steps(),
        ]
        checks = _daemon_checks(wanted, root, fingerprint, socket, state)
        checks += await examination.run(steps)
        checks += await examination.run(runtimes.provider_steps())
        if wanted.with_models:
            checks += await examination.run(models.steps())
            examination.left_out += models.left_out
    return checks


async def _query(target: str, socket: Socket | None) -> DaemonState | EdgedError:
    """Return the daemon's report, or the error if the daemon does not answer."""
    if socket is not None and socket.refusal:
        return Unsupported(f"no daemon answers at {target}: {socket.refusal}")
    try:
        return await in_thread(lambda: DaemonState.query(target))
    except EdgedError as error:
        return error


def _daemon_checks(
    wanted: CheckOptions,
    root: Root,
    fingerprint: Fingerprint,
    socket: Socket | None,
    state: DaemonState | EdgedError | None,
) -> list[Check]:
    if state is None:
        return [unknown(Name.DAEMON, "the daemon was not asked, because folders were given instead of a daemon")]
    checks: list[Check] = []
    if socket is None or socket.exists:
        checks.append(daemon.connections(socket, wanted.target))
    if isinstance(state, EdgedError):
        return [*checks, daemon.silence(wanted.target, state, socket, is_named=wanted.is_named)]
    checks += daemon.status(state, wanted.target)
    if socket is not None:
        checks.append(daemon.facts(state.device, fingerprint))
        found = daemon.find_hosts(root, socket.pid) if socket.pid is not None else None
        checks += daemon.hosts(found, state.models)
    return checks


def _box_steps(root: Root, fingerprint: Fingerprint, user: User) -> list[Step]:
    """Return the steps that only read system files, of this box or of a recorded one."""
    facts = fingerprint.facts
    node_facts = facts if root.exists("dev") else {}  # recorded boxes have no device nodes
    battery = "sys/class/rtc/rtc[0-9]*"
    return [
        plain(Name.RUNTIME, lambda: runtime_packages(facts), "packages"),
        plain(Name.DRIVER, lambda: hardware.driver(facts, hardware.cards(root))),
        plain(Name.DEVICE_NODES, lambda: hardware.device_nodes(hardware.nodes(root, user), user, node_facts)),
        plain(Name.POWER_MODE, lambda: hardware.power_mode(root, facts)),
        plain(Name.THROTTLING, lambda: hardware.throttling(root)),
        plain(Name.TEMPERATURE, lambda: hardware.temperature(root)),
        plain(Name.MEMORY, lambda: [system.memory(system.meminfo(root))]),
        plain(Name.MEMORY_LIMIT, lambda: [system.memory_limit(root)]),
        plain(Name.SWAP, lambda: [system.swap(system.meminfo(root))]),
        plain(Name.KERNEL, lambda: system.kernel(root)),
        plain(Name.CONFINEMENT, lambda: [system.confinement(confine.lacking())]),
        plain(Name.CLOCK_SYNC, lambda: [system.clock_sync(system.is_synchronized(root), bool(root.glob(battery)))]),
    ]


def _live_steps(wanted: CheckOptions, daemon_pid: int | None, user: User, view: StoreView) -> list[Step]:
    """Return the steps for shared memory, descriptors, the folders, the store and the clock."""
    state, cache, owner = wanted.state, wanted.cache, user.uid if daemon_pid else None
    return [
        plain(
            Name.SHARED_MEMORY,
            lambda: [system.arena(wanted.arena_mb), system.shared_memory(system.SharedMemory.read())],
        ),
        plain(Name.DESCRIPTORS, lambda: [system.descriptors(system.Descriptors.of(daemon_pid))]),
        plain(Name.STATE_FOLDER, lambda: folders.ownership(Name.STATE_FOLDER, folders.look(state), owner), str(state)),
        plain(Name.CACHE_FOLDER, lambda: folders.ownership(Name.CACHE_FOLDER, folders.look(cache), owner), str(cache)),
        plain(
            Name.DISK_SPACE, lambda: [folders.space(folders.look(cache), view.store.size, wanted.engines)], str(cache)
        ),
        plain(Name.STORE, lambda: [_store(view)], str(cache)),
        plain(Name.CLOCK, lambda: [system.clock(system.installed(), view.latest_time())]),
    ]


def _store(view: StoreView) -> Check:
    """Check the engine store. The result is a warning if the store had damaged engines."""
    counts, records = view.store.counts, view.store.records()
    if counts.damaged:
        message = f"{many(counts.damaged, 'damaged engine')} found; the daemon removes and rebuilds damaged engines"
        return warning(Name.STORE, message, "check the disk (journalctl -k, smartctl), or use another disk")
    held = sum(bool(record.files) for record in records.values())
    others = f"{many(len(records) - held, 'record')} of engines that have no files (reference, rejected or evicted)"
    return ok(Name.STORE, f"{many(held, 'engine')}, and {others}")
