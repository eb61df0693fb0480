"""One visit: everything that is asked of a box and its models, in which order, and the report of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edged.config import Engines
from edged.device.fingerprint import Fingerprint, probe
from edged.device.root import Root
from edged.doctor import box, daemon, extras
from edged.doctor.check import Check, Name, unknown
from edged.doctor.daemon import Heard, Socket
from edged.doctor.examination import Examination, Step, Tell, in_thread
from edged.doctor.nodes import User
from edged.doctor.patients import Patients
from edged.doctor.report import Report
from edged.doctor.runtimes import Runtimes
from edged.doctor.stock import Stock
from edged.errors import EdgedError, InvalidInput, Unsupported

_PROBE_SECONDS = 30.0
_ORDER = {name: rank for rank, name in enumerate(Name)}
_OF_THIS_BOX = (
    "runtimes, extras, limits, folders, daemon and models: they are asked of the box itself, and this is a record"
)


class Wanted(msgspec.Struct, frozen=True):
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


async def examine(wanted: Wanted, tell: Tell) -> Report:
    """Looks at everything; `tell` hears of each step as it begins. InvalidInput where there is no such model."""
    examination = Examination(asyncio.get_running_loop().time() + wanted.seconds, tell)
    root = Root(wanted.root)
    fingerprint = await _fingerprint(wanted.root)
    if root.is_live:
        checks = await _box_itself(wanted, root, fingerprint, examination)
    else:
        checks = await examination.run(box.steps(root, fingerprint, _stranger()))
        examination.left_out.append(_OF_THIS_BOX)
    checks.sort(key=lambda check: _ORDER[check.name])
    return Report(tuple(checks), tuple(examination.left_out))


async def _box_itself(wanted: Wanted, root: Root, fingerprint: Fingerprint, examination: Examination) -> list[Check]:
    known, heard, silence = await _daemon(wanted)
    pid = known.pid if known is not None else None
    user = (User.of_process(root, pid) if pid is not None else None) or User.current()
    runtimes = Runtimes(fingerprint.facts)
    with tempfile.TemporaryDirectory(prefix="edged-doctor-") as scratch:
        stock = await in_thread(
            lambda: Stock(wanted.state, wanted.cache, fingerprint, wanted.engines, Path(scratch), wanted.models)
        )
        patients = Patients(stock, heard, runtimes, fingerprint, Path(scratch), wanted.model)
        if wanted.model and not patients.names:
            raise InvalidInput(f"there is no model {wanted.model!r} in {stock.repository.root}, and no such file")
        steps: list[Step] = [
            *box.steps(root, fingerprint, user),
            *box.live_steps(pid, wanted.arena_mb),
            *box.folder_steps(wanted.state, wanted.cache, wanted.engines, user.uid if pid else None, stock),
            *runtimes.steps(),
            runtimes.packages(),
            *extras.steps(),
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


async def _daemon(wanted: Wanted) -> tuple[Socket | None, Heard | None, EdgedError | None]:
    """The socket, what the daemon behind it says, and why it says nothing."""
    if not wanted.target:
        return None, None, None
    known = await in_thread(lambda: daemon.socket_of(wanted.target))
    if known is not None and known.refusal:
        return known, None, Unsupported(f"no daemon answers at {wanted.target}: {known.refusal}")
    try:
        return known, await in_thread(lambda: daemon.hear(wanted.target)), None
    except EdgedError as error:
        return known, None, error


def _daemon_checks(
    wanted: Wanted,
    root: Root,
    fingerprint: Fingerprint,
    known: Socket | None,
    heard: Heard | None,
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


def _stranger() -> User:
    """Whoever a recorded box belongs to is not known; root may use every node there is."""
    return User(0, frozenset((0,)), "root")
