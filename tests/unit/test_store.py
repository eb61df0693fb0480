"""The engine store with any history, crashes, full disks and foreign files: a bad entry counts as missing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.backends.artefact import Artefact
from edged.backends.contract import Recipe
from edged.errors import EngineDamaged
from edged.store import atomic, sealed
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Speed, Verdict
from edged.store.store import Store
from tests.waiting import ends_despite_fifo

_HOLDER = """
import sys, time
from pathlib import Path
from edged.store.store import Store
with Store(Path(sys.argv[1])).stage() as out:
    (out / "half").write_bytes(b"half of an engine")
    print(out, flush=True)
    time.sleep(600)
"""


def record_of(files: Artefact, name: str = "a", *, accepted: bool = True) -> EngineRecord:
    return EngineRecord(
        parts={"format": "1", "model": name, "recipe.backend": "null"},
        model=name,
        recipe=Recipe("null"),
        files=files.files,
        build=BuildFacts(1.0, 2.0, 3.0, "test"),
        verdict=Verdict(accepted, "" if accepted else "wrong", {"cosine": 1.0}),
        speeds=(Speed(1, 0, 4.0, 4.0, 8.0),) if accepted else (),
    )


def put(store: Store, name: str = "a", content: bytes = b"engine") -> str:
    """Commit one engine; return its key's digest."""
    with store.stage() as out:
        (out / "blob").write_bytes(content)
        return store.commit(out, record_of(Artefact.seal(out), name))


def content(store: Store, name: str = "a") -> bytes:
    """Return the blob of an engine, checked against its record."""
    return store.artefact(key_of(name)).load("blob")


def key_of(name: str) -> str:
    return EngineKey(record_of(Artefact("", {}), name).parts).digest


def as_another_user(function: Callable[[], str]) -> str:
    """Call a function in a process without root's rights, and return its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writer, function().encode())
        except BaseException as error:
            os.write(writer, f"raised {error!r}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        returned = output.read()
    os.waitpid(pid, 0)
    return returned


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_find_missing_engine_counts_a_miss(store: Store) -> None:
    assert store.find("0" * 32) is None
    assert (store.counts.hits, store.counts.misses) == (0, 1)
    with pytest.raises(KeyError):
        store.artefact("0" * 32)


def test_open_store_with_a_record_without_digest_accepts_and_seals_it(store: Store, tmp_path: Path) -> None:
    key = put(store)
    place, known = tmp_path / "engines" / key / "record.json", store.records()[key]
    place.write_bytes(msgspec.json.format(msgspec.json.encode(known)))
    used = store.used(key)
    again = Store(tmp_path)
    assert again.records() == {key: known}
    assert sealed.is_sealed(place.read_bytes())
    assert again.used(key) == pytest.approx(used, abs=1.0)
    assert [path.name for path in place.parent.iterdir() if path.name.endswith(".part")] == []


def test_damaged_engine_stays_if_it_was_replaced_meanwhile(store: Store) -> None:
    key = put(store, content=b"old")
    opened = store.artefact(key)
    put(store, content=b"new")
    store.damaged(opened)
    assert store.counts.damaged == 1
    assert content(store) == b"new"
    store.remove(key)
    store.damaged(opened)  # an engine that is already removed is only counted
    assert store.counts.damaged == 2


def test_amend_other_files_or_missing_engine_raises(store: Store) -> None:
    key = put(store)
    record = store.records()[key]
    with pytest.raises(ValueError, match="commit"):
        store.amend(msgspec.structs.replace(record, files={}))
    store.remove(key)
    with pytest.raises(KeyError):
        store.amend(record)


# -- the order of use -----------------------------------------------------------------------------------------------


def by_use(store: Store) -> str:
    """Return the names of the engines, the least recently used first."""
    records = store.records()
    return "".join(record.model for key, record in sorted(records.items(), key=lambda item: store.used(item[0])))


@pytest.mark.parametrize("jump", [-40 * 365 * 86400.0, -1.0, 0.0, 1.0, 10 * 365 * 86400.0])
def test_used_order_survives_a_clock_that_jumps(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    for name in "abc":
        put(store, name)
    there = time.time() + jump
    monkeypatch.setattr(time, "time", lambda: there)  # the clock stands still
    store = Store(tmp_path)
    assert by_use(store) == "abc"
    store.touch(key_of("b"))
    put(store, "d")
    store.touch(key_of("a"))
    assert by_use(store) == by_use(Store(tmp_path)) == "cbda"
    monkeypatch.undo()
    store = Store(tmp_path)
    store.touch(key_of("c"))
    assert by_use(store) == by_use(Store(tmp_path)) == "bdac"


@pytest.mark.parametrize("ns", [2_000_000_000 * 10**9, (1 << 63) - 1], ids=["future", "beyond all clocks"])
def test_used_time_in_the_future_keeps_the_order(store: Store, tmp_path: Path, ns: int) -> None:
    for name in "abc":
        put(store, name)
    os.utime(tmp_path / "engines" / key_of("a"), ns=(0, ns))
    store = Store(tmp_path)
    assert by_use(store) == "bca"
    store.touch(key_of("b"))
    assert by_use(store) == "cab"
    assert len(Store(tmp_path).records()) == 3


# -- crash residue and foreign files --------------------------------------------------------------------------


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


def _rename(folder: Path) -> None:
    folder.rename(folder.with_name("f" * 32))


def _flip_a_part(folder: Path) -> None:
    text = (folder / "record.json").read_text()
    assert '"model": "a"' in text
    (folder / "record.json").write_text(text.replace('"model": "a"', '"model": "b"'))


def _edit(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    record = json.loads((folder / "record.json").read_text())
    change(record)
    (folder / "record.json").write_text(json.dumps(record))


EMPTY = {"sha256": "0", "size": 0}
NUL = {"a\0b": EMPTY}

RESIDUE: dict[str, Callable[[Path], object]] = {
    "no record": lambda e: (e / "record.json").unlink(),
    "an empty record": lambda e: (e / "record.json").write_bytes(b""),
    "half a record": lambda e: (e / "record.json").write_bytes((e / "record.json").read_bytes()[:80]),
    "a record of another shape": lambda e: (e / "record.json").write_bytes(b'{"parts": []}'),
    "a record that is not text": lambda e: (e / "record.json").write_bytes(b"\xff\xfe\x00\x80"),
    "a record with a lone surrogate": lambda e: (e / "record.json").write_bytes(b'{"parts": {"a": "\\ud800"}}'),
    "a record nested without end": lambda e: (e / "record.json").write_bytes(b"[" * 100_000),
    "a record of another key": _flip_a_part,
    "a part nested without end": lambda e: (e / "record.json").write_bytes(b'{"z":' + b"[" * 100_000),
    "a record without end": lambda e: os.truncate(e / "record.json", 1 << 40),
    "a file name with a null byte": lambda e: _edit(e, lambda record: record["files"].update(NUL)),
    "a file whose name is too long": lambda e: _edit(e, lambda record: record["files"].update({"x" * 5000: EMPTY})),
    "a folder as record": lambda e: _replace(e / "record.json", Path.mkdir),
    "a dangling link as record": lambda e: _replace(e / "record.json", lambda p: p.symlink_to("nowhere")),
    "a link to itself as record": lambda e: _replace(e / "record.json", lambda p: p.symlink_to(p)),
    "the name of another key": _rename,
    "a missing file": lambda e: (e / "blob").unlink(),
    "a shorter file": lambda e: (e / "blob").write_bytes(b"e"),
    "a longer file": lambda e: (e / "blob").write_bytes(b"engines"),
    "a folder as file": lambda e: _replace(e / "blob", Path.mkdir),
    "a FIFO as file": lambda e: _replace(e / "blob", os.mkfifo),
    "a dangling link as file": lambda e: _replace(e / "blob", lambda p: p.symlink_to("nowhere")),
    "a file as entry": lambda e: _replace(e, lambda p: p.write_bytes(b"x")),
    "an empty folder as entry": lambda e: _replace(e, Path.mkdir),
    "a FIFO as entry": lambda e: _replace(e, os.mkfifo),
    "a dangling link as entry": lambda e: _replace(e, lambda p: p.symlink_to("nowhere")),
}


@pytest.mark.parametrize("residue", RESIDUE)
def test_damaged_entry_is_counted_removed_and_affects_no_other(store: Store, tmp_path: Path, residue: str) -> None:
    key, good = put(store, "a"), put(store, "good")
    RESIDUE[residue](tmp_path / "engines" / key)
    again = Store(tmp_path)
    assert again.counts.damaged == 1
    assert again.find(key) is None
    assert list(again.records()) == [good]
    assert names(tmp_path / "engines") == [good]
    assert again.artefact(good).load("blob") == b"engine"
    assert put(again, "a") == key  # the name can be used again
    assert Store(tmp_path).counts.damaged == 0


def test_link_among_entries_is_removed_without_its_target(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (tmp_path / "engines" / "link").symlink_to(precious)
    assert Store(tmp_path).counts.damaged == 1
    assert (precious / "file").read_text() == "mine"


def test_open_fifo_as_record_does_not_block(store: Store, tmp_path: Path) -> None:
    record = tmp_path / "engines" / put(store) / "record.json"
    record.unlink()
    os.mkfifo(record)
    assert ends_despite_fifo(lambda: Store(tmp_path), record)


def test_artefact_altered_at_equal_size_is_damaged_when_read(store: Store, tmp_path: Path) -> None:
    key = put(store)
    (tmp_path / "engines" / key / "blob").write_bytes(b"ENGINE")
    artefact = Store(tmp_path).artefact(key)
    with pytest.raises(EngineDamaged):
        artefact.load("blob")
    with pytest.raises(EngineDamaged):
        artefact.check()


def test_stage_of_another_process_is_swept_after_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            stage = Path(holder.stdout.readline().strip())
            assert Store(tmp_path).counts.strays == 0
            assert (stage / "half").exists()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    store = Store(tmp_path)
    assert store.counts.strays == 1
    assert names(tmp_path / "staging") == []
    assert store.records() == {}


def test_engine_that_other_users_can_change_is_left_alone(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "engines" / put(store)
    folder.chmod(0o777)
    again = Store(tmp_path, accepts_foreign=False)
    assert again.records() == {}
    assert (folder.exists(), again.counts.damaged) == (True, 0)


def test_open_foreign_files_in_the_staging_folder_do_not_raise(store: Store, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    (staging / "file").write_bytes(b"x")
    os.mkfifo(staging / "fifo")
    (staging / "link").symlink_to("nowhere")
    (staging / "folder" / ".owner").mkdir(parents=True)
    (staging / "old").mkdir()
    (staging / "old" / ".owner").write_bytes(b"")
    assert Store(tmp_path).counts.strays >= 2
    assert not (staging / "folder").exists()
    assert not (staging / "old").exists()


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """Yield a path in a folder that another user can reach."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o777)
    yield root / "cache"
    shutil.rmtree(root)


def summary(root: Path) -> str:
    """Return what a process without root's rights finds in a store: damaged entries, engines, the problem."""

    def found() -> str:
        store = Store(root)
        return f"{store.counts.damaged} {len(store.records())} {store.problem}"

    return as_another_user(found)


def test_open_unreadable_record_counts_as_damaged(shared_root: Path) -> None:
    as_another_user(lambda: put(Store(shared_root)))
    (shared_root / "engines" / key_of("a") / "record.json").chmod(0)
    assert summary(shared_root) == "1 0 "


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_rescan_without_descriptors_or_memory_removes_no_engine(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    key = put(store)

    def refused(path: Path) -> bytes:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr("edged.store.store.read_regular", refused)
    store.rescan()
    monkeypatch.undo()
    assert store.find(key) is None
    assert store.counts.damaged == 0
    assert content(Store(tmp_path)) == b"engine"


def test_size_while_another_thread_commits_is_consistent(store: Store) -> None:
    done = threading.Event()

    def commit_many() -> None:
        for number in range(60):
            put(store, str(number))
            store.remove(key_of(str(number - 5)))
        done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=commit_many)
    try:
        thread.start()
        while not done.is_set() and thread.is_alive():
            assert store.size >= 0
            store.records()
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert done.is_set()
    assert store.size == len(b"engine") * 5


def test_commit_without_exchange_removes_the_old_engine_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, content=b"old")
    monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    assert put(store, content=b"new") == key_of("a")
    assert content(store) == content(Store(tmp_path)) == b"new"

    def broken(source: object, target: object) -> None:
        if "engines" in str(target):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)  # type: ignore[arg-type]

    rename = os.rename
    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(OSError):
        put(store, content=b"newest")
    monkeypatch.undo()
    assert store.find(key_of("a")) is None  # as on the disk
    assert names(tmp_path / "engines") == names(tmp_path / "staging") == []


# -- unusable folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file/cache", "cache"])
def test_open_without_its_folders_is_empty_and_reports_why(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "engines").write_text("not a folder")
    store = Store(tmp_path / place)
    assert store.records() == {}
    assert "ot a directory" in store.problem
    assert str(tmp_path / place) in store.problem
    with pytest.raises(OSError):
        put(store)
    store.remove(key_of("a"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's rights")
def test_open_folder_of_another_user_reports_the_missing_rights(shared_root: Path) -> None:
    put(Store(shared_root))
    shared_root.chmod(0)
    assert summary(shared_root) == f"0 0 {shared_root}/engines cannot be used: Permission denied"
    for folder in (shared_root, *shared_root.rglob("*")):
        folder.chmod(0o755 if folder.is_dir() else 0o644)
    assert summary(shared_root) == f"0 1 {shared_root}/engines is not writable by this user"


# -- full and read-only disks ---------------------------------------------------------------------------------------


def test_commit_on_full_disk_raises_and_leaves_nothing(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    store = Store(small_disk)
    kept = put(store, "kept")
    with store.stage() as out:
        (out / "blob").write_bytes(b"x")
        sealed = record_of(Artefact.seal(out), "kept")
        filler = fill(small_disk)
        with pytest.raises(OSError) as raised:
            store.commit(out, sealed)
    assert raised.value.errno == errno.ENOSPC
    assert names(small_disk / "staging") == []
    assert names(small_disk / "engines") == [kept]
    assert store.artefact(kept).load("blob") == b"engine"
    filler.unlink()
    assert Store(small_disk).counts.damaged == 0
    assert put(store, "kept", b"after") == kept


def test_open_read_only_disk_reports_it_and_drops_engines_in_memory(
    small_disk: Path, make_read_only: Callable[[Path], None]
) -> None:
    store = Store(small_disk)
    bad, good = put(store, "bad"), put(store, "good")
    store.pin(bad)
    make_read_only(small_disk)
    store = Store(small_disk)
    assert store.problem == f"{small_disk}/engines is on a read-only file system"
    store.damaged(store.artefact(bad))
    store.touch(good)
    assert list(store.records()) == [good]
    store.remove(good)
    store.strip(record_of(Artefact("", {}), "bad"))
    assert store.records() == {}
    for change in (store.pin, store.unpin):
        with pytest.raises(OSError):
            change(bad)
    assert store.is_pinned(bad)
    store.rescan()
    assert sorted(store.records()) == sorted([bad, good])


def test_remove_and_strip_on_full_disk_free_its_space(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    store = Store(small_disk)
    for name in "ab":
        put(store, name, bytes(1 << 18))
    fill(small_disk)
    store.strip(msgspec.structs.replace(store.records()[key_of("a")], evicted=True))  # a record does not fit either
    assert key_of("a") not in store.records()
    store.remove(key_of("b"))
    assert names(small_disk / "engines") == names(small_disk / "staging") == []
    assert put(store, "c", bytes(1 << 18)) == key_of("c")


def test_commit_without_inodes_leaves_the_disk_as_it_was(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=64", str(small_disk)], check=True)
    put(Store(small_disk))
    for left in range(5):  # a new engine needs more: two folders, the lock, the blob, the record
        filler = small_disk / "filler"
        filler.mkdir()
        with contextlib.suppress(OSError):
            for number in range(64):
                (filler / str(number)).touch()
        for number in range(left):
            (filler / str(number)).unlink()
        store = Store(small_disk)
        with pytest.raises(OSError) as raised:
            put(store, "new")
        assert raised.value.errno == errno.ENOSPC
        assert names(small_disk / "staging") == []
        assert content(store) == content(Store(small_disk)) == b"engine"
        store.remove(key_of("a"))
        assert names(small_disk / "engines") == names(small_disk / "staging") == []
        shutil.rmtree(filler)
        put(store)


def test_open_damaged_entry_on_read_only_disk_is_ignored(
    small_disk: Path, make_read_only: Callable[[Path], None]
) -> None:
    first = Store(small_disk)
    bad, good = put(first, "bad"), put(first, "good")
    (small_disk / "engines" / bad / "blob").write_bytes(b"")
    make_read_only(small_disk)
    assert list(Store(small_disk).records()) == [good]


def test_commit_that_cannot_be_synced_leaves_the_old_engine(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = put(store, content=b"old")

    def broken(root: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(root))

    monkeypatch.setattr(atomic, "sync_tree", broken)
    with pytest.raises(OSError):
        put(store, content=b"new")
    assert store.find(key) is not None
    assert store.artefact(key).load("blob") == b"old"


# -- any history ----------------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Any sequence of commits, removals, damage and restarts, compared with a dictionary."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.store, self.expected = Store(self.root), dict[str, bytes | None]()  # None: without files
        self.latency = dict[str, float | None]()
        self.pinned, self.order = set[str](), list[str]()

    @rule(name=st.sampled_from("abc"), content=st.binary(max_size=3), has_files=st.booleans())
    def commit(self, name: str, content: bytes, has_files: bool) -> None:
        with self.store.stage() as out:
            if has_files:
                (out / "blob").write_bytes(content)
            assert Store(self.root).counts.strays == 0
            record = record_of(Artefact.seal(out), name, accepted=has_files)
            key = self.store.commit(out, record)
        self.expected[key], self.latency[key] = content if has_files else None, record.latency_ms
        self._used(key)

    @rule()
    def fail_to_build(self) -> None:
        with contextlib.suppress(RuntimeError), self.store.stage() as out:
            (out / "half").write_bytes(b"half")
            raise RuntimeError

    @rule(name=st.sampled_from("abc"))
    def remove(self, name: str) -> None:
        self.store.remove(key_of(name))
        self.pinned.discard(key_of(name))
        self._gone(key_of(name))

    @rule(name=st.sampled_from("abc"))
    def strip(self, name: str) -> None:
        if key_of(name) in self.expected:
            self.store.strip(msgspec.structs.replace(self.store.records()[key_of(name)], evicted=True))
            self.expected[key_of(name)] = None
            self._used(key_of(name))

    @rule(name=st.sampled_from("abc"), latency=st.floats(1, 9))
    def amend(self, name: str, latency: float) -> None:
        if key_of(name) in self.expected:
            record = self.store.records()[key_of(name)]
            self.store.amend(msgspec.structs.replace(record, speeds=(Speed(1, 0, latency, latency, 8.0),)))
            self.latency[key_of(name)] = latency

    @rule(name=st.sampled_from("abc"))
    def touch(self, name: str) -> None:
        self.store.touch(key_of(name))
        if key_of(name) in self.expected:
            self._used(key_of(name))

    @rule(name=st.sampled_from("abc"))
    def pin(self, name: str) -> None:
        self.store.pin(key_of(name))
        self.pinned.add(key_of(name))

    @rule(name=st.sampled_from("abc"))
    def unpin(self, name: str) -> None:
        self.store.unpin(key_of(name))
        self.pinned.discard(key_of(name))

    @rule(data=st.data(), is_opened=st.booleans())
    def lose_a_file(self, data: st.DataObject, is_opened: bool) -> None:
        whole = sorted(key for key, content in self.expected.items() if content is not None)
        if whole:
            key = data.draw(st.sampled_from(whole))
            (self.root / "engines" / key / "blob").unlink()
            if is_opened:
                self.store.damaged(self.store.artefact(key))
            else:
                self.store.rescan()
            self._gone(key)

    @rule()
    def restart(self) -> None:
        self.store = Store(self.root)

    def _used(self, key: str) -> None:
        self.order = [*(other for other in self.order if other != key), key]

    def _gone(self, key: str) -> None:
        self.expected.pop(key, None)
        self.order = [other for other in self.order if other != key]

    @invariant()
    def holds_what_was_committed(self) -> None:
        assert set(self.store.records()) == set(self.expected)
        assert names(self.root / "engines") == sorted(self.expected)
        for key, content in self.expected.items():
            assert self.store.records()[key].latency_ms == self.latency[key]
            assert names(self.root / "engines" / key) == ["blob", "record.json"][content is None :]
            if content is None:
                assert self.store.artefact(key).files == {}
            else:
                assert self.store.artefact(key).load("blob") == content
        assert names(self.root / "staging") == []
        assert names(self.root / "pins") == sorted(self.pinned)
        assert {key for key in map(key_of, "abc") if self.store.is_pinned(key)} == self.pinned
        assert sorted(self.expected, key=self.store.used) == self.order
        assert self.store.size == sum(len(content or b"") for content in self.expected.values())

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=15, stateful_step_count=10, deadline=None, derandomize=True)


def test_problem_of_removed_folders_is_mended_unless_read_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shutil.rmtree(store.engines)
    assert "does not exist" in Store(tmp_path, is_read_only=True).problem
    assert store.problem == ""
    assert store.engines.is_dir()
