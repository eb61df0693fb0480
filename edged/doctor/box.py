"""The steps that look at the box itself: what is read below a root, and what only the running system tells."""

from __future__ import annotations

import time
from pathlib import Path

from edged.config import Engines
from edged.confinement import confine
from edged.device.fingerprint import Fingerprint
from edged.device.root import Root
from edged.doctor import clock, driver, folders, nodes, power, process_limits, system
from edged.doctor.check import Check, Name, ok, warning
from edged.doctor.examination import Step, plain
from edged.doctor.nodes import User
from edged.doctor.stock import Stock


def steps(root: Root, fingerprint: Fingerprint, user: User) -> list[Step]:
    """What files say, of this box or of a recorded one."""
    facts, has_nodes = fingerprint.facts, root.exists("dev")  # records have none
    return [
        plain(Name.DRIVER, lambda: driver.judge(facts, driver.cards(root))),
        plain(Name.DEVICE_NODES, lambda: nodes.judge(nodes.nodes(root, user), user, facts if has_nodes else {})),
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
        plain(Name.SHARED_MEMORY, lambda: process_limits.examine_shared_memory(arena_mb)),
        plain(Name.DESCRIPTORS, lambda: [process_limits.judge_descriptors(process_limits.descriptors(daemon))]),
    ]


def folder_steps(state: Path, cache: Path, settings: Engines, daemon_uid: int | None, stock: Stock) -> list[Step]:
    """The folders, what the store holds, and the clock against its times."""
    return [
        plain(Name.STATE_FOLDER, lambda: folders.judge(Name.STATE_FOLDER, folders.look(state), daemon_uid), str(state)),
        plain(Name.CACHE_FOLDER, lambda: folders.judge(Name.CACHE_FOLDER, folders.look(cache), daemon_uid), str(cache)),
        plain(Name.DISK_SPACE, lambda: [folders.space(folders.look(cache), stock.store.size, settings)], str(cache)),
        plain(Name.STORE, lambda: [store(stock)], str(cache)),
        plain(Name.CLOCK, lambda: [clock.judge(_moment(stock))]),
    ]


def store(stock: Stock) -> Check:
    """Judges what the store met when it was read."""
    counts, records = stock.store.counts, stock.records()
    if counts.damaged:
        said = f"{counts.damaged} engines were damaged and have been set aside; they are built again"
        return warning(Name.STORE, said, "see the disk's health: journalctl -k, smartctl, or another card")
    held = sum(bool(record.files) for record in records.values())
    return ok(Name.STORE, f"{held} engines, {len(records) - held} records of others")


def _moment(stock: Stock) -> clock.Moment:
    return clock.Moment(time.time(), clock.installed(), clock.latest(stock.times()))
