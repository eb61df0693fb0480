"""One visit: everything that is asked of a box and its models, in which order, and the report of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edged.config import Engines
from edged.confinement import confine
from edged.device.fingerprint import Fingerprint, probe
from edged.device.root import Root
from edged.doctor import clock, daemon, devices, folders, power, system
from edged.doctor.check import Check, Name, Report, ok, unknown, warning
from edged.doctor.daemon import DaemonState, Socket
from edged.doctor.devices import User
from edged.doctor.examination import Examination, Step, Tell, in_thread, plain
from edged.doctor.model_checks import ModelChecks, StoreView
from edged.doctor.runtimes import Runtimes, extra_steps
from edged.errors import EdgedError, InvalidInput, Unsupported

_PROBE_SECONDS = 30.0
_ORDER = {name: rank for rank, name in enumerate(Name)}
_OF_THIS_BOX = (
    "runtimes, extras, limits, folders, daemon and models: they are asked of the box itself, and this is a record"
)


class CheckOptions(msgspec.Struct, frozen=True):
    """What to look at. `model` is the only one to look at, by name or file; empty for every one.

    `target` is the daemon to ask, empty for none; `is_named` says that it was named, so that its silence is wrong.
    `seconds` bounds all of it. `models` are those that a configuration names, by name.
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


async def run_checks(wanted: CheckOptions, tell: Tell) -> Report:
    """Looks at everything; `tell` hears of each step as it begins. InvalidInput where there is no such model."""
    examination = Examination(asyncio.get_running_loop().time() + wanted.seconds, tell)
    root = Root(wanted.root)
    fingerprint = await _fingerprint(wanted.root)
    if root.is_live:
        checks = await _box_itself(wanted, root, fingerprint, examination)
    else:
        checks = await examination.run(box_steps(root, fingerprint, _unknown_user()))
        examination.left_out.append(_OF_THIS_BOX)
    checks.sort(key=lambda check: _ORDER[check.name])
    return Report(tuple(checks), tuple(examination.left_out))


async def _box_itself(
    wanted: CheckOptions, root: Root, fingerprint: Fingerprint, examination: Examination
) -> list[Check]:
    known, heard, silence = await _daemon(wanted)
    pid = known.pid if known is not None else None
    user = (User.of_process(root, pid) if pid is not None else None) or User.current()
    runtimes = Runtimes(fingerprint.facts)
    with tempfile.TemporaryDirectory(prefix="edged-doctor-") as scratch:
        stock = await in_thread(
            lambda: StoreView(wanted.state, wanted.cache, fingerprint, wanted.engines, Path(scratch), wanted.models)
        )
        patients = ModelChecks(stock, heard, runtimes, fingerprint, Path(scratch), wanted.model)
        if wanted.model and not patients.names:
            raise InvalidInput(f"there is no model {wanted.model!r} in {stock.repository.root}, and no such file")
        steps: list[Step] = [
            *box_steps(root, fingerprint, user),
            *live_steps(pid, wanted.arena_mb),
            *folder_steps(wanted.state, wanted.cache, wanted.engines, user.uid if pid else None, stock),
            *runtimes.steps(),
            runtimes.packages(),
            *extra_steps(),
        ]
        checks = [*_daemon_checks(wanted, root, fingerprint, known, heard, silence)]
        checks += await examination.run(steps)
        checks += await examination.run(runtimes.provider_steps())
        checks += await examination.run(patients.steps())
        examination.left_out += patients.left_out
    return checks


async def _fingerprint(root: Path) -> Fingerprint:
    try:
        return await asyncio.wait_for(in_thread(lambda: probe(root)), _PROBE_SECONDS)
    except asyncio.TimeoutError:
        raise Unsupported(
            f"the facts of this box cannot be read within {_PROBE_SECONDS:g} s; see journalctl -k: a driver may hang"
        ) from None


async def _daemon(wanted: CheckOptions) -> tuple[Socket | None, DaemonState | None, EdgedError | None]:
    """The socket, what the daemon behind it says, and why it says nothing."""
    if not wanted.target:
        return None, None, None
    known = await in_thread(lambda: daemon.socket_of(wanted.target))
    if known is not None and known.refusal:
        return known, None, Unsupported(f"no daemon answers at {wanted.target}: {known.refusal}")
    try:
        return known, await in_thread(lambda: daemon.query(wanted.target)), None
    except EdgedError as error:
        return known, None, error


def _daemon_checks(
    wanted: CheckOptions,
    root: Root,
    fingerprint: Fingerprint,
    known: Socket | None,
    heard: DaemonState | None,
    silence: EdgedError | None,
) -> Sequence[Check]:
    if not wanted.target:
        return [unknown(Name.DAEMON, "not asked: folders were named, and no daemon")]
    checks: list[Check] = []
    if known is None or known.exists:
        checks.append(daemon.judge_socket(known, wanted.target))
    if heard is None:
        error = silence or Unsupported("it says nothing")
        return [*checks, daemon.silent(wanted.target, error, known, is_named=wanted.is_named)]
    checks += daemon.judge(heard, wanted.target)
    if known is not None:
        checks.append(daemon.judge_facts(heard.device, fingerprint))
        found = daemon.hosts(root, known.pid) if known.pid is not None else None
        checks += daemon.judge_hosts(found, heard.models)
    return checks


def _unknown_user() -> User:
    """Whoever a recorded box belongs to is not known; root may use every node there is."""
    return User(0, frozenset((0,)), "root")


def box_steps(root: Root, fingerprint: Fingerprint, user: User) -> list[Step]:
    """What files say, of this box or of a recorded one."""
    facts, has_nodes = fingerprint.facts, root.exists("dev")  # records have none
    return [
        plain(Name.DRIVER, lambda: devices.judge_driver(facts, devices.cards(root))),
        plain(
            Name.DEVICE_NODES, lambda: devices.judge_nodes(devices.nodes(root, user), user, facts if has_nodes else {})
        ),
        plain(Name.POWER_MODE, lambda: power.mode(facts, power.frequencies(root))),
        plain(Name.THROTTLING, lambda: power.throttling(power.throttled(root), power.knows_throttling(root))),
        plain(Name.TEMPERATURE, lambda: power.temperature(power.zones(root))),
        plain(Name.MEMORY, lambda: [system.memory(system.meminfo(root))]),
        plain(Name.MEMORY_LIMIT, lambda: [system.memory_limit(system.limit(root))]),
        plain(Name.SWAP, lambda: [system.swap(system.meminfo(root))]),
        plain(Name.KERNEL, lambda: system.kernel(system.settings(root))),
        plain(Name.CONFINEMENT, lambda: [confinement(confine.lacking())]),
        plain(Name.CLOCK_SYNC, lambda: [clock.judge_sync(clock.is_synchronized(root), clock.has_battery(root))]),
    ]


def confinement(lacking: tuple[str, ...]) -> Check:
    """Judges whether this kernel can keep models of strangers to their own files."""
    if lacking:
        said = f"engine hosts and builds are confined less than usual: this kernel lacks {', '.join(lacking)}"
        return warning(Name.CONFINEMENT, said, "use Linux 6.12 or newer, with landlock in lsm=; see docs/security.md")
    return ok(Name.CONFINEMENT, "Landlock and seccomp keep engine hosts and builds to their own files")


def live_steps(daemon: int | None, arena_mb: int) -> list[Step]:
    """What the kernel says of this process, or of the daemon with that process id."""
    return [
        plain(Name.SHARED_MEMORY, lambda: system.examine_shared_memory(arena_mb)),
        plain(Name.DESCRIPTORS, lambda: [system.judge_descriptors(system.descriptors(daemon))]),
    ]


def folder_steps(state: Path, cache: Path, settings: Engines, daemon_uid: int | None, stock: StoreView) -> list[Step]:
    """The folders, what the store holds, and the clock against its times."""
    return [
        plain(Name.STATE_FOLDER, lambda: folders.judge(Name.STATE_FOLDER, folders.look(state), daemon_uid), str(state)),
        plain(Name.CACHE_FOLDER, lambda: folders.judge(Name.CACHE_FOLDER, folders.look(cache), daemon_uid), str(cache)),
        plain(Name.DISK_SPACE, lambda: [folders.space(folders.look(cache), stock.store.size, settings)], str(cache)),
        plain(Name.STORE, lambda: [store(stock)], str(cache)),
        plain(Name.CLOCK, lambda: [clock.judge(_moment(stock))]),
    ]


def store(stock: StoreView) -> Check:
    """Judges what the store met when it was read."""
    counts, records = stock.store.counts, stock.records()
    if counts.damaged:
        said = f"{counts.damaged} engines were damaged and have been set aside; they are built again"
        return warning(Name.STORE, said, "see the disk's health: journalctl -k, smartctl, or another card")
    held = sum(bool(record.files) for record in records.values())
    return ok(Name.STORE, f"{held} engines, {len(records) - held} records of others")


def _moment(stock: StoreView) -> clock.Moment:
    return clock.Moment(time.time(), clock.installed(), clock.latest(stock.times()))
