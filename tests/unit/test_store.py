"""The store through crashes, full disks and strangers in its folders: a bad entry is a counted miss, never an error."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.backend.artefact import Artefact
from edged.backend.contract import Recipe
from edged.errors import EngineDamaged
from edged.store import atomic
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Verdict
from edged.store.store import Store
from tests.waiting import ends_despite_fifo, wait

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
        latency_ms=4.0 if accepted else None,
    )


def put(store: Store, name: str = "a", content: bytes = b"engine", file: str = "blob") -> str:
    """Commits one engine; its key's digest."""
    with store.stage() as out:
        (out / file).write_bytes(content)
        return store.commit(out, record_of(Artefact.seal(out), name))


def names(folder: Path) -> list[str]:
    """What lies in a folder, without the store's own lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".sweep")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_what_was_committed_is_found_now_and_after_a_restart(store: Store, tmp_path: Path) -> None:
    key = put(store)
    for each in (store, Store(tmp_path)):
        record = each.find(key)
        assert record is not None
        assert record.model == "a"
        assert record.is_usable
        assert each.artefact(key).load("blob") == b"engine"
        assert each.counts.hits == 1
        assert each.counts.damaged == each.counts.strays == 0
    assert key == EngineKey(record_of(Artefact("", {})).parts).digest
    assert names(tmp_path / "staging") == []


def test_what_is_not_there_is_a_counted_miss(store: Store) -> None:
    assert store.find("0" * 32) is None
    assert (store.counts.hits, store.counts.misses) == (0, 1)
    with pytest.raises(KeyError):
        store.artefact("0" * 32)


def test_a_rejected_engine_is_kept_without_files(store: Store, tmp_path: Path) -> None:
    with store.stage() as out:
        key = store.commit(out, record_of(Artefact("", {}), accepted=False))
    record = Store(tmp_path).find(key)
    assert record is not None
    assert not record.is_usable
    assert record.size == 0


def test_committing_again_replaces_all_of_the_engine(store: Store, tmp_path: Path) -> None:
    key = put(store, content=b"old", file="old-blob")
    assert put(store, content=b"newer") == key
    assert names(tmp_path / "engines" / key) == ["blob", "record.json"]
    assert Store(tmp_path).artefact(key).load("blob") == b"newer"


def test_removing_takes_the_files_and_removing_again_is_nothing(store: Store, tmp_path: Path) -> None:
    key, other = put(store), put(store, "b")
    store.remove(key)
    store.remove(key)
    assert store.find(key) is None
    assert names(tmp_path / "engines") == [other]
    assert list(Store(tmp_path).records()) == [other]


def test_an_engine_reported_as_damaged_is_counted_and_gone(store: Store, tmp_path: Path) -> None:
    key = put(store)
    store.damaged(key)
    assert store.counts.damaged == 1
    assert store.find(key) is None
    assert names(tmp_path / "engines") == []


def test_a_stage_goes_with_its_block_even_when_the_build_fails(store: Store, tmp_path: Path) -> None:
    def failing() -> None:
        with store.stage() as out:
            (out / "half").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert names(tmp_path / "staging") == []
    assert store.records() == {}


def test_records_are_a_copy(store: Store) -> None:
    key = put(store)
    store.records().clear()
    assert store.find(key) is not None


def test_another_process_may_add_and_remove_and_rescanning_shows_it(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path)
    key = put(other)
    assert store.find(key) is None
    store.rescan()
    assert store.find(key) is not None
    other.remove(key)
    store.rescan()
    assert store.find(key) is None
    assert store.counts.damaged == 0


# -- crash residue and strangers ------------------------------------------------------------------------------------


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


RESIDUE: dict[str, Callable[[Path], object]] = {
    "no record": lambda e: (e / "record.json").unlink(),
    "an empty record": lambda e: (e / "record.json").write_bytes(b""),
    "half a record": lambda e: (e / "record.json").write_bytes((e / "record.json").read_bytes()[:80]),
    "a record of another shape": lambda e: (e / "record.json").write_bytes(b'{"parts": []}'),
    "a record that is not text": lambda e: (e / "record.json").write_bytes(b"\xff\xfe\x00\x80"),
    "a record with a lone surrogate": lambda e: (e / "record.json").write_bytes(b'{"parts": {"a": "\\ud800"}}'),
    "a record nested without end": lambda e: (e / "record.json").write_bytes(b"[" * 100_000),
    "a record of another key": _flip_a_part,
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
def test_residue_is_a_counted_miss_that_is_set_aside_and_harms_nothing_else(
    store: Store, tmp_path: Path, residue: str
) -> None:
    key, good = put(store, "a"), put(store, "good")
    RESIDUE[residue](tmp_path / "engines" / key)
    again = Store(tmp_path)
    assert again.counts.damaged == 1
    assert again.find(key) is None
    assert list(again.records()) == [good]
    assert names(tmp_path / "engines") == [good]
    assert again.artefact(good).load("blob") == b"engine"
    assert put(again, "a") == key  # and the place is free again
    assert Store(tmp_path).counts.damaged == 0


def test_a_link_that_is_set_aside_leaves_what_it_leads_to(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (tmp_path / "engines" / "link").symlink_to(precious)
    assert Store(tmp_path).counts.damaged == 1
    assert (precious / "file").read_text() == "mine"


def test_a_fifo_in_place_of_the_record_does_not_hold_up_the_start(store: Store, tmp_path: Path) -> None:
    record = tmp_path / "engines" / put(store) / "record.json"
    record.unlink()
    os.mkfifo(record)
    assert ends_despite_fifo(lambda: Store(tmp_path), record)


def test_bytes_altered_at_equal_size_are_found_when_they_are_read(store: Store, tmp_path: Path) -> None:
    key = put(store)
    (tmp_path / "engines" / key / "blob").write_bytes(b"ENGINE")
    artefact = Store(tmp_path).artefact(key)
    with pytest.raises(EngineDamaged):
        artefact.load("blob")
    with pytest.raises(EngineDamaged):
        artefact.check()


def test_a_stage_is_left_alone_while_its_process_lives_and_swept_once_it_was_killed(tmp_path: Path) -> None:
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


def test_an_own_stage_is_not_swept_by_a_second_store(store: Store, tmp_path: Path) -> None:
    with store.stage() as out:
        (out / "blob").write_bytes(b"engine")
        assert Store(tmp_path).counts.strays == 0
        key = store.commit(out, record_of(Artefact.seal(out)))
    assert Store(tmp_path).find(key) is not None


def test_strangers_in_the_staging_folder_never_raise(store: Store, tmp_path: Path) -> None:
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


def test_killing_the_process_at_any_moment_leaves_every_entry_whole(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\n"
        "from test_store import put, Store\nstore = Store(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\nnumber = 0\n"
        "while True:\n    number += 1\n    put(store, str(number % 3), bytes([number % 256]) * 5000)\n"
    )
    for least in (0, 1, 1):
        arguments = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            wait(lambda least=least: len(names(tmp_path / "engines")) > least, "an engine")
            os.kill(writer.pid, signal.SIGKILL)
        store = Store(tmp_path)
        assert store.counts.damaged == 0
        assert names(tmp_path / "staging") == []
        for key in store.records():
            store.artefact(key).check()


# -- disks that refuse ----------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_commit_and_nothing_is_left_half(
    small_disk: Path, fill: Callable[[Path], Path]
) -> None:
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


def test_a_read_only_disk_still_serves_what_it_holds(small_disk: Path, make_read_only: Callable[[Path], None]) -> None:
    key = put(Store(small_disk))
    make_read_only(small_disk)
    store = Store(small_disk)
    assert store.artefact(key).load("blob") == b"engine"
    with pytest.raises(OSError), store.stage():
        pytest.fail("nothing can be staged here")
    assert store.find(key) is not None


def test_a_damaged_entry_on_a_read_only_disk_does_not_prevent_the_start(
    small_disk: Path, make_read_only: Callable[[Path], None]
) -> None:
    first = Store(small_disk)
    bad, good = put(first, "bad"), put(first, "good")
    (small_disk / "engines" / bad / "blob").write_bytes(b"")
    make_read_only(small_disk)
    assert list(Store(small_disk).records()) == [good]


def test_a_replacement_that_cannot_be_synced_leaves_the_old_engine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    """Any sequence of commits, removals, damage and restarts, against a dictionary."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.store, self.expected = Store(self.root), dict[str, bytes]()

    @rule(name=st.sampled_from("abc"), content=st.binary(max_size=3))
    def commit(self, name: str, content: bytes) -> None:
        self.expected[put(self.store, name, content)] = content

    @rule(name=st.sampled_from("abc"))
    def remove(self, name: str) -> None:
        key = EngineKey(record_of(Artefact("", {}), name).parts).digest
        self.store.remove(key)
        self.expected.pop(key, None)

    @rule(data=st.data())
    def lose_a_file(self, data: st.DataObject) -> None:
        if self.expected:
            key = data.draw(st.sampled_from(sorted(self.expected)))
            (self.root / "engines" / key / "blob").unlink()
            self.store.rescan()
            del self.expected[key]

    @rule()
    def restart(self) -> None:
        self.store = Store(self.root)

    @invariant()
    def holds_what_was_committed(self) -> None:
        assert set(self.store.records()) == set(self.expected)
        assert names(self.root / "engines") == sorted(self.expected)
        for key, content in self.expected.items():
            assert self.store.artefact(key).load("blob") == content
        assert names(self.root / "staging") == []

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=15, stateful_step_count=10, deadline=None, derandomize=True)
