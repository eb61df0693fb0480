"""The repository: models read from disk, added completely or not at all, and removed completely."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edged.errors import (
    AlreadyExists,
    ConfigError,
    InvalidInput,
    ModelNotFound,
    OutOfSpace,
    Overloaded,
    Refused,
    Superseded,
)
from edged.models import repair
from edged.models.entries import check_name, fingerprint, outside_entries, plain_entry
from edged.models.identity import model_digest
from edged.models.repository import MAX_REMOVED, TRASH, Repository
from edged.store import atomic
from tests.waiting import ends_despite_fifo


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "upload"
    path.write_bytes(b"model")
    return path


RECORD = repair.Record("a" * 64, "b" * 64, "/home/me/m.onnx", "2026-01-02T03:04:05+00:00", ())


def lay(root: Path, name: str, *versions: str, settings: str | None = None) -> Path:
    for version in versions:
        (root / name / version).mkdir(parents=True)
        (root / name / version / "model.onnx").write_text(f"{name} {version}")
    if settings is not None:
        (root / name / "edged.toml").write_text(settings)
    return root / name


def test_entries_read_tritons_layout(root: Path) -> None:
    folder = lay(root, "yolo", "1", settings='threads = 2\n[thresholds]\nscore = "0.3"\n')
    (entry,) = Repository(root).entries().values()
    assert (entry.name, entry.version, entry.path) == ("yolo", "1", str(folder / "1" / "model.onnx"))
    assert entry.settings == {"threads": "2", "thresholds.score": "0.3"}
    assert entry.problem == ""


@pytest.mark.parametrize("other", ["m", "m.gguf"])
def test_entries_two_models_of_one_name_are_refused_by_name(root: Path, other: str) -> None:
    (root / "m.onnx").write_bytes(b"model")
    if other == "m":
        lay(root, "m", "1")
    else:
        (root / other).write_bytes(b"model")
    (entry,) = Repository(root).entries().values()
    assert entry.problem == f"both {other} and m.onnx exist in the models folder; remove one"


def test_entries_plain_file_has_its_own_name_and_stamp(root: Path) -> None:
    path = root / "face.v2.onnx"
    missing = plain_entry("face.v2", path, {})
    path.write_bytes(b"x")
    (entry,) = Repository(root).entries().values()
    assert (entry.name, entry.version, entry.settings) == ("face.v2", "1", {})
    assert entry.stamp != missing.stamp


@pytest.mark.parametrize("other", ["latest", "v11", "-1", "1.5", "", "²", "٤", "11x", "04", "03", "9" * 19])
def test_entries_folders_without_version_number_are_ignored(root: Path, other: str) -> None:
    (lay(root, "yolo", "3", *([other] if other else [])) / "4").write_text("not a folder")
    assert Repository(root).entries()["yolo"].version == "3"


@pytest.mark.parametrize(
    "text", ["threads =", 'backends = "x"', f'threads = "{"9" * 5000}"', "a = " + "[" * 5000, None]
)
def test_entries_invalid_settings_are_the_problem_of_their_model(root: Path, text: str | None) -> None:
    folder = lay(root, "bad", "1", settings=text)
    if text is None:
        (folder / "edged.toml").mkdir()
    lay(root, "good", "1")
    entries = Repository(root).entries()
    assert entries["bad"].problem.startswith("edged.toml")
    assert entries["good"].problem == ""


def test_entries_other_files_are_ignored(root: Path) -> None:
    assert Repository(root / "none").entries() == {}
    (root / "empty").mkdir()
    (root / "notes.txt").write_text("x")
    (root / ".hidden.onnx").write_text("x")
    (root / ".adding-xyz" / "1").mkdir(parents=True)
    (root / "no-version" / "latest").mkdir(parents=True)
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to("nowhere")
    assert Repository(root).entries() == {}


def test_entries_settings_that_are_a_fifo_do_not_block(root: Path) -> None:
    fifo = lay(root, "bad", "1") / "edged.toml"
    os.mkfifo(fifo)
    assert ends_despite_fifo(Repository(root).entries, fifo)


@pytest.fixture
def open_root() -> Iterator[Path]:
    """Return a repository that every user can reach; pytest's own folders may be private."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_entries_unreadable_folder_is_skipped(open_root: Path, as_nobody: Callable[[], None]) -> None:
    lay(open_root, "good", "1")
    lay(open_root, "secret", "1").chmod(0)
    as_nobody()
    assert "good" in Repository(open_root).entries()


def test_entries_model_removed_meanwhile_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(root, "good", "1")
    going = lay(root, "going", "1")
    real = Path.is_dir

    def is_dir(path: Path, **more: bool) -> bool:
        answer = real(path, **more)
        if path == going:
            shutil.rmtree(going, ignore_errors=True)
        return answer

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert "good" in Repository(root).entries()


# -- scans that fail -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unreadable(broken: Path, number: int) -> Iterator[None]:
    """Let each reading of a folder fail with this errno."""
    iterate, scan = Path.iterdir, os.scandir

    def check(path: object) -> None:
        if Path(os.fspath(path)) == broken:  # type: ignore[call-overload]
            raise OSError(number, os.strerror(number), str(path))

    def iterdir(path: Path) -> Iterator[Path]:
        check(path)
        return iterate(path)

    def scandir(path: str) -> object:
        check(path)
        return scan(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", iterdir)
        patch.setattr(os, "scandir", scandir)
        yield


FAULTS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE]


@pytest.mark.parametrize("number", [*FAULTS, errno.EACCES])
def test_entries_scan_that_fails_after_one_with_models_raises(root: Path, number: int) -> None:
    lay(root, "yolo", "1")
    repository = Repository(root)
    with unreadable(root, number):
        assert repository.entries() == {}, "no scan has found a model yet"
    before = repository.entries()
    with unreadable(root, number), pytest.raises(OSError, match="models"):
        repository.entries()
    assert repository.entries() == before


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_entries_repository_that_is_gone_is_empty(root: Path, number: int) -> None:
    lay(root, "yolo", "1")
    repository = Repository(root)
    assert repository.entries()
    with unreadable(root, number):
        assert repository.entries() == {}
    shutil.rmtree(root)
    assert repository.entries() == {}


def test_entries_without_free_descriptors_raises(root: Path) -> None:
    lay(root, "yolo", "1")
    repository = Repository(root)
    repository.entries()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="open files"):
            repository.entries()
        with pytest.raises(Overloaded):
            repository.versions("yolo")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(repository.entries()) == ["yolo"]


@pytest.mark.parametrize("number", FAULTS)
def test_entries_folder_that_cannot_be_read_keeps_its_entries(
    root: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = lay(root, "yolo", "1")
    repository = Repository(root)
    before = repository.entries()
    lay(root, "face", "1")
    with unreadable(folder, number):
        for _ in range(2):
            entries = repository.entries()
            assert (set(entries), entries["yolo"]) == ({"face", "yolo"}, before["yolo"])
    assert caplog.text.count("cannot read") == 1, "a fault is logged once"
    shutil.rmtree(folder)
    assert set(repository.entries()) == {"face"}


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_entries_folder_that_is_gone_or_forbidden_is_dropped(root: Path, number: int) -> None:
    folder = lay(root, "yolo", "1")
    repository = Repository(root)
    assert repository.entries()
    with unreadable(folder, number):
        assert repository.entries() == {}


# -- detection of changes -------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Path], object]] = {
    "the model": lambda folder: (folder / "1" / "model.onnx").write_text("longer than before"),
    "its weights": lambda folder: (folder / "1" / "weights.bin").write_bytes(b"other"),
    "weights in a folder": lambda folder: (folder / "1" / "data" / "more.bin").write_bytes(b"changed"),
    "the settings": lambda folder: (folder / "edged.toml").write_text("threads = 12"),
    "no settings": lambda folder: (folder / "edged.toml").unlink(),
    "no weights": lambda folder: (folder / "1" / "weights.bin").unlink(),
    "a newer version": lambda folder: lay(folder.parent, folder.name, "2"),
    "the same size later": lambda folder: os.utime(folder / "1" / "model.onnx", ns=(1, 1)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_entries_change_with_every_file(root: Path, what: str) -> None:
    folder = lay(root, "yolo", "1", settings="threads = 1")
    (folder / "1" / "data").mkdir()
    for name in ("weights.bin", "data/more.bin"):
        (folder / "1" / name).write_bytes(b"weights!")
    settled = Repository(root, clock_ns=much_later)  # its clock is far ahead, so every change is old
    before = settled.entries()["yolo"]
    assert settled.entries()["yolo"] is before
    CHANGES[what](folder)
    assert settled.entries()["yolo"] == Repository(root).entries()["yolo"] != before


def much_later() -> int:
    return time.time_ns() + 3600 * 10**9


def test_entries_folder_with_a_problem_is_read_each_time(root: Path) -> None:
    (lay(root, "yolo", "2") / "2" / "model.onnx").unlink()
    settled = Repository(root, clock_ns=much_later)
    one, again = (settled.entries()["yolo"] for _ in range(2))
    assert one == again
    assert one is not again
    assert one.problem == "version 2 has no model.onnx"


UNCERTAIN: dict[str, Callable[[Path], object]] = {
    "a link": lambda folder: (folder / "link").symlink_to("/"),
    "a link to weights": lambda folder: (folder / "1" / "link").symlink_to("/"),
    "many files": lambda folder: [(folder / f"{number}.txt").touch() for number in range(300)],
}


@pytest.mark.parametrize("what", UNCERTAIN)
def test_fingerprint_of_a_folder_that_may_change_unseen_is_none(root: Path, what: str) -> None:
    folder = lay(root, "yolo", "1", settings="threads = 1")
    before = fingerprint(folder, much_later())
    assert before is not None
    assert fingerprint(folder, time.time_ns()) is None, "it changed just now"
    os.utime(folder / "edged.toml", ns=(1, 1))
    assert fingerprint(folder, much_later()) != before
    UNCERTAIN[what](folder)
    assert fingerprint(folder, much_later()) is None


def test_stamp_changes_with_a_file_of_equal_size_and_time(root: Path) -> None:
    path = lay(root, "yolo", "1") / "1" / "model.onnx"
    before, status = Repository(root).entries()["yolo"].stamp, path.stat()
    fresh = path.with_name("fresh")
    fresh.write_bytes(path.read_bytes())
    os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))
    fresh.rename(path)
    assert Repository(root).entries()["yolo"].stamp != before


# -- adding and removing --------------------------------------------------------------------------------------------


def test_add_copies_weights_and_settings(root: Path, source: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w"
    weights.write_bytes(b"weights")
    repository = Repository(root)
    path = repository.add("yolo", {"model.onnx": source, "data/w.bin": weights}, {"threads": "2"})
    entry = repository.entries()["yolo"]
    assert entry.path == str(path)
    assert entry.settings == {"threads": "2"}
    assert path.read_bytes() == b"model"
    assert (path.parent / "data" / "w.bin").read_bytes() == b"weights"
    assert [p.name for p in root.iterdir()] == ["yolo"]


def test_add_other_digest_is_superseded(root: Path, source: Path, tmp_path: Path) -> None:
    weights, repository = tmp_path / "w.bin", Repository(root)
    weights.write_bytes(b"weights")
    files = {"some.onnx": source, "w.bin": weights}
    digest = model_digest(source, ["w.bin"])
    for changed in (source, weights):
        before = changed.read_bytes()
        changed.write_bytes(b"another")
        with pytest.raises(Superseded, match=f"{source.name} was replaced while it was examined; add it again"):
            repository.add("yolo", files, {}, digest=digest)
        assert list(root.iterdir()) == []
        changed.write_bytes(before)
    assert repository.add("yolo", files, {}, digest=digest).read_bytes() == source.read_bytes()


def test_add_taken_name_is_refused(root: Path, source: Path) -> None:
    lay(root, "yolo", "1")
    (root / "face.onnx").write_bytes(b"x")
    (root / "gone").symlink_to("nowhere")
    for name in ("yolo", "face", "gone"):
        with pytest.raises(AlreadyExists, match=name):
            Repository(root).add(name, {"m": source}, {})
    assert (root / "yolo" / "1" / "model.onnx").read_text() == "yolo 1"


HOSTILE = ["", ".", "..", ".hidden", "a/b", "../up", "/etc", "a\n", "a\0", "-x", "a" * 129, "a/", "x\\y"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_refused_by_every_operation(root: Path, source: Path, name: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        check_name(name)
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidInput):
        Repository(root).add(name, {"m": source}, {})
    with pytest.raises(InvalidInput):
        Repository(root).remove(name)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "settings", "error"),
    [
        (("w.bin",), {}, InvalidInput),
        ((), {"thread": "1"}, ConfigError),
        ((repair.FILE,), {}, InvalidInput),
    ],
    ids=["missing file", "invalid setting", "data named as the record"],
)
def test_add_that_fails_leaves_nothing(
    root: Path, source: Path, tmp_path: Path, files: tuple[str, ...], settings: dict[str, str], error: type[Exception]
) -> None:
    data = {name: source if name == repair.FILE else tmp_path / "gone" for name in files}
    with pytest.raises(error):
        Repository(root).add("yolo", {"m": source, **data}, settings, record=RECORD)
    assert list(root.iterdir()) == []


def test_add_onto_full_disk_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(2 << 20))
    with pytest.raises(OutOfSpace, match="No space"):
        Repository(small_disk / "models").add("yolo", {"m": large}, {})
    assert list((small_disk / "models").iterdir()) == []


def test_add_shows_the_complete_model_or_nothing(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, seen = Repository(root), []
    real = shutil.copyfile

    def copy(*arguments: Path) -> object:
        seen.append(repository.entries())
        return real(*arguments)

    monkeypatch.setattr(shutil, "copyfile", copy)
    repository.add("yolo", {"m": source, "w.bin": source}, {})
    assert seen == [{}, {}]
    assert list(repository.entries()) == ["yolo"]


def test_remove_with_delete_removes_the_folder_or_the_plain_file(root: Path) -> None:
    lay(root, "yolo", "1", "2", settings="threads = 1")
    (root / "face.onnx").write_bytes(b"x")
    repository = Repository(root)
    for name in ("yolo", "face"):
        assert repository.remove(name, delete=True) is None
    assert list(root.iterdir()) == []
    for name in ("yolo", "face"):
        with pytest.raises(ModelNotFound, match=name):
            repository.remove(name)


def test_remove_moves_to_the_trash(root: Path) -> None:
    lay(root, "yolo", "1", settings="threads = 1")
    (root / "face.onnx").write_bytes(b"the only copy")
    repository = Repository(root)
    kept = [repository.remove(name) for name in ("yolo", "face")]
    assert repository.entries() == {}
    assert [[each.name for each in place.iterdir()] for place in kept if place] == [["yolo"], ["face.onnx"]]
    for place in filter(None, kept):
        for path in place.iterdir():
            path.rename(root / path.name)
    assert set(repository.entries()) == {"yolo", "face"}
    assert (root / "face.onnx").read_bytes() == b"the only copy"


@pytest.mark.parametrize(("limit", "value"), [("MAX_REMOVED", 3), ("MAX_REMOVED_BYTES", 3)])
def test_remove_keeps_the_newest_within_bounds(
    root: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"edged.models.repository.{limit}", value)
    root.mkdir(exist_ok=True)
    repository = Repository(root)
    for number in range(5):
        (root / f"m{number}.onnx").write_bytes(b"x")
        repository.remove(f"m{number}")
    repository.sweep()
    assert sorted(path.name for path in (root / TRASH).rglob("*.onnx")) == ["m2.onnx", "m3.onnx", "m4.onnx"]


def test_remove_model_that_cannot_be_kept_says_how_to_delete_it(root: Path) -> None:
    lay(root, "yolo", "1")
    (root / TRASH).write_bytes(b"no folder")
    with pytest.raises(Refused, match="--delete"):
        Repository(root).remove("yolo")
    assert set(Repository(root).entries()) == {"yolo"}


def test_sweep_removes_only_leftovers(root: Path) -> None:
    lay(root, "yolo", "1")
    for name in (".adding-1", ".removing-2", ".other"):
        (root / name / "1").mkdir(parents=True)
    Repository(root).sweep()
    assert sorted(p.name for p in root.iterdir()) == [".other", "yolo"]
    Repository(root / "none").sweep()


def test_add_stores_the_record_of_repairs(tmp_path: Path) -> None:
    repository, source = Repository(tmp_path / "models"), tmp_path / "m.onnx"
    source.write_bytes(b"model")
    repository.add("m", {"m.onnx": source}, {}, record=RECORD)
    entry = repository.entries()["m"]
    assert entry.repair == RECORD
    assert (tmp_path / "models" / "m" / "1" / repair.FILE).is_file()
    assert "repaired from the same file on 2026-01-02" in entry.already_there("b" * 64)
    assert "--replace" in entry.already_there("c" * 64)
    assert "--replace" in entry.already_there("")


def test_entries_report_files_that_look_like_settings(root: Path) -> None:
    folder = lay(root, "m", "1")
    (folder / "edged.toml").write_text("threads = 2")
    assert Repository(root).entries()["m"].unread == ()
    (folder / "settings.toml").touch()
    (folder / "1" / "edged.toml").touch()
    assert Repository(root).entries()["m"].unread == (
        "1/edged.toml is not read; put settings in m/edged.toml",
        "settings.toml is not read; put settings in m/edged.toml",
    )


def test_entries_plain_file_has_settings_next_to_it(root: Path) -> None:
    (root / "plain.onnx").touch()
    before = Repository(root).entries()["plain"]
    (root / "plain.toml").write_text("threads = 2")
    after = Repository(root).entries()["plain"]
    assert (before.settings, after.settings, after.problem) == ({}, {"threads": "2"}, "")
    assert before.stamp != after.stamp
    (root / "plain.toml").write_text("threats = 2")
    assert "plain.toml: unknown model setting 'threats'" in Repository(root).entries()["plain"].problem


def test_change_writes_settings_that_entries_reads(root: Path) -> None:
    lay(root, "m", "1", settings="threads = 2")
    (root / "plain.onnx").touch()
    repository = Repository(root)
    for name in ("m", "plain"):
        repository.change(name, {"threads": "1", "thresholds.score": "0.4"})
        assert repository.entries()[name].settings == {"threads": "1", "thresholds.score": "0.4"}
    with pytest.raises(ConfigError):
        repository.change("m", {"threads": "many"})
    with pytest.raises(ModelNotFound):
        repository.change("missing", {})
    repository.remove("plain", delete=True)
    assert not (root / "plain.toml").exists()


@pytest.mark.parametrize("exchanges", [True, False])
def test_add_replace_keeps_the_rest_of_the_folder(
    root: Path, source: Path, tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:  # a file system that cannot swap two names
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    folder = lay(root, "m", "2", "3", settings="threads = 2")
    (folder / "config.pbtxt").write_text("max_batch_size: 0")
    (folder / "samples").mkdir()
    (folder / "samples" / "old.png").touch()
    repository = Repository(root)
    path = repository.add("m", {"upload": source}, {"threads": "1"}, replace=True)
    assert path == folder / "4" / "model.onnx"
    assert sorted(each.name for each in folder.iterdir()) == ["4", "config.pbtxt", "edged.toml", "samples"]
    assert (folder / "samples" / "old.png").exists()
    entry = repository.entries()["m"]
    assert (entry.version, entry.settings, entry.problem) == ("4", {"threads": "1"}, "")
    (old,) = (root / TRASH).glob("*/m")
    assert sorted(each.name for each in old.iterdir()) == ["2", "3", "config.pbtxt", "edged.toml", "samples"]
    sample = tmp_path / "new.png"
    sample.touch()
    repository.add("m", {"upload": source}, {}, samples={"new.png": sample}, replace=True)
    assert [each.name for each in (folder / "samples").iterdir()] == ["new.png"]
    assert repository.entries()["m"].version == "5"
    assert not list(root.glob(".replacing-*"))


def test_add_replace_stores_the_file_under_the_name_in_the_configuration(root: Path, source: Path) -> None:
    folder = lay(root, "m", "1")
    (folder / "1" / "model.onnx").rename(folder / "1" / "net.onnx")
    (folder / "config.pbtxt").write_text('default_model_filename: "net.onnx"')
    repository = Repository(root)
    assert repository.add("m", {"upload": source}, {}, replace=True) == folder / "2" / "net.onnx"
    assert (repository.entries()["m"].version, repository.entries()["m"].problem) == ("2", "")


@pytest.mark.parametrize(
    ("config", "settings"),
    [("", {"versions": "1"}), ("version_policy { specific { versions: [ 1 ] } }", {}), ("nonsense", {})],
)
def test_add_replace_by_a_model_that_cannot_be_served_is_refused(
    root: Path, source: Path, config: str, settings: dict[str, str]
) -> None:
    folder = lay(root, "m", "1")
    (folder / "config.pbtxt").write_text(config)
    with pytest.raises(InvalidInput):
        Repository(root).add("m", {"upload": source}, settings, replace=True)
    assert (folder / "1" / "model.onnx").read_text() == "m 1"
    assert not (root / TRASH).exists()


def test_add_replace_of_a_plain_file_or_missing_model_adds_the_model(root: Path, source: Path) -> None:
    (root / "plain.onnx").write_text("old")
    (root / "plain.toml").write_text("threads = 2")
    repository = Repository(root)
    repository.add("plain", {"upload": source}, {"threads": "1"}, replace=True)
    entry = repository.entries()["plain"]
    assert (entry.version, entry.settings, entry.problem) == ("2", {"threads": "1"}, "")
    assert sorted(each.name for each in (root / TRASH).glob("*/*")) == ["plain.onnx", "plain.toml"]
    repository.add("new", {"upload": source}, {}, replace=True)
    assert repository.entries()["new"].version == "1"


def test_add_replace_that_fails_leaves_the_old_model(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lay(root, "m", "1", settings="threads = 2")
    repository = Repository(root)
    with pytest.raises(Superseded):
        repository.add("m", {"upload": source}, {}, digest="0" * 64, replace=True)

    def fail(one: Path, other: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "exchange", fail)
    with pytest.raises(OutOfSpace):
        repository.add("m", {"upload": source}, {}, replace=True)
    assert (folder / "1" / "model.onnx").read_text() == "m 1"
    assert repository.entries()["m"].settings == {"threads": "2"}
    assert not list(root.glob(".replacing-*"))


def test_add_replace_is_durable_before_it_answers(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lay(root, "m", "1")
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(atomic, "sync_directory", lambda path: synced.append((path, (folder / "2").is_dir())))
    Repository(root).add("m", {"upload": source}, {}, replace=True)
    assert (root, True) in synced


@pytest.mark.parametrize("step", ["edged.store.atomic.sync_directory", "edged.models.repository._move_to_trash"])
def test_add_replace_that_fails_after_the_exchange_keeps_the_old_model(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = lay(root, "m", "1")

    def fail(*arguments: object) -> None:
        if (folder / "2").is_dir():
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(step, fail)
    with pytest.raises(OutOfSpace):
        Repository(root).add("m", {"upload": source}, {}, replace=True)
    assert (folder / "1" / "model.onnx").read_text() == "m 1"
    assert [path.name for path in root.iterdir() if path.name != TRASH] == ["m"]


def test_add_replace_of_a_plain_file_that_fails_keeps_the_old_model(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, rename = root / "m.onnx", os.rename
    plain.write_text("old")
    (root / "m.toml").write_text("")

    def fail(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
        if Path(new) == root / "m":
            raise OSError(errno.EIO, "Input/output error")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OutOfSpace):
        Repository(root).add("m", {"upload": source}, {}, replace=True)
    assert plain.read_text() == "old"
    assert sorted(path.name for path in root.iterdir() if path.name != TRASH) == ["m.onnx", "m.toml"]
    assert not list((root / TRASH).glob("0*"))


@pytest.mark.parametrize(
    ("step", "is_replaced"),
    [
        ("shutil.copyfile", False),
        ("edged.store.atomic.sync_tree", False),
        ("edged.store.atomic.exchange", False),
        ("edged.models.repository._move_to_trash", True),
    ],
)
def test_sweep_after_a_killed_replacement_keeps_the_old_model(
    root: Path, source: Path, step: str, is_replaced: bool
) -> None:
    folder = lay(root, "m", "3")
    (folder / "notes.txt").write_text("old")
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException), pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, lambda *_: os._exit(0))
            Repository(root).add("m", {"upload": source}, {}, replace=True)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the step was reached"
    assert list(root.glob(".replacing-*"))
    repository = Repository(root)
    repository.sweep()
    assert not list(root.glob(".replacing-*"))
    if is_replaced:
        assert (folder / "4" / "model.onnx").read_bytes() == source.read_bytes()
        repository.restore("m")
    else:
        with pytest.raises(ModelNotFound):
            repository.restore("m")
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


def test_add_of_one_name_twice_concurrently_is_refused_once(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = atomic.publish

    def beaten(staged: Path, final: Path) -> None:
        monkeypatch.setattr(atomic, "publish", publish)
        Repository(root).add("yolo", {"m": source}, {})
        publish(staged, final)

    monkeypatch.setattr(atomic, "publish", beaten)
    with pytest.raises(AlreadyExists, match="yolo"):
        Repository(root).add("yolo", {"m": source}, {})
    assert [path.name for path in root.iterdir()] == ["yolo"]


_LABELS = 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }'
_WARMUP = (
    'model_warmup { name: "w" inputs { key: "x" value'
    ' { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "labels.txt" } } }'
)
_STATE = (
    'sequence_batching { state { input_name: "a" output_name: "b" data_type: TYPE_FP32 dims: [ 2 ]'
    ' initial_state { name: "i" data_type: TYPE_FP32 dims: [ 2 ] data_file: "labels.txt" } } }'
)


@pytest.mark.parametrize("link", ["file", "folder", "device", "fifo"])
@pytest.mark.parametrize(("config", "folder"), [(_LABELS, ""), (_WARMUP, "warmup"), (_STATE, "initial_state")])
def test_entries_file_named_by_configuration_behind_link_is_refused(
    root: Path, tmp_path: Path, config: str, folder: str, link: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    secret = tmp_path / "elsewhere" / "labels.txt"
    secret.write_text("root:secret-hash")
    model = lay(root, "m", "1")
    (model / "config.pbtxt").write_text(config if link != "folder" else config.replace("labels.txt", "in/labels.txt"))
    place = model / folder
    place.mkdir(exist_ok=True)
    if link == "folder":
        (place / "in").symlink_to(secret.parent)
    elif link == "fifo":
        os.mkfifo(place / "labels.txt")
    else:
        (place / "labels.txt").symlink_to(secret if link == "file" else "/dev/zero")
    entry = Repository(root).entries()["m"]
    assert "labels.txt" in entry.problem
    assert "secret-hash" not in repr(entry)


@pytest.mark.parametrize("name", ["config.pbtxt", "edged.toml"])
def test_entries_configuration_that_is_a_link_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_text("")
    (lay(root, "m", "1") / name).symlink_to(tmp_path / "elsewhere")
    assert name in Repository(root).entries()["m"].problem


def test_entries_samples_that_are_links_are_left_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "private.jpg").write_bytes(b"picture")
    linked, inside = lay(root, "linked", "1"), lay(root, "inside", "1")
    (linked / "samples").symlink_to(tmp_path / "elsewhere")
    (inside / "samples").mkdir()
    (inside / "samples" / "a.jpg").symlink_to(tmp_path / "elsewhere" / "private.jpg")
    entries = Repository(root).entries()
    assert entries["linked"].samples == entries["inside"].samples == ()


def test_remove_many_models_concurrently_keeps_each(root: Path) -> None:
    """Each removal needs its own folder in the trash, and must not delete a folder that another is filling."""
    names = [f"m{number}" for number in range(MAX_REMOVED)]
    for _ in range(5):
        for name in names:
            (root / f"{name}.onnx").write_text(name)
        with ThreadPoolExecutor(len(names)) as threads:
            kept = list(threads.map(Repository(root).remove, names))
        assert [sorted(path.name for path in place.iterdir()) for place in kept if place] == [
            [f"{name}.onnx"] for name in names
        ]


def test_sweep_with_a_stray_file_in_the_trash_leaves_it(root: Path) -> None:
    stray = root / TRASH / "7"
    stray.parent.mkdir()
    stray.write_text("no folder")
    Repository(root).sweep()
    (root / "m.onnx").write_text("m")
    assert Repository(root).remove("m") == root / TRASH / "000008"
    assert stray.exists()


ENSEMBLE = """platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 label_filename: "names.txt" }
ensemble_scheduling {
step { model_name: "a" model_version: -1 input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } }
}
"""


def ensemble(root: Path, text: str = ENSEMBLE) -> Path:
    (root / "e").mkdir()
    (root / "e" / "config.pbtxt").write_text(text)
    (root / "e" / "names.txt").write_text("cat\ndog\n")
    return root / "e"


def test_entries_ensemble_needs_no_version_folder(root: Path) -> None:
    folder = ensemble(root)
    (entry,) = Repository(root).entries().values()
    assert (entry.name, entry.version, entry.problem) == ("e", "1", "")
    assert (entry.path, entry.folder) == (str(folder / "config.pbtxt"), str(folder))
    assert [step.model for step in entry.steps] == ["a"]
    assert entry.labels == {"Y": ("cat", "dog")}
    with pytest.raises(InvalidInput, match="is an ensemble"):
        entry.require_file()


def test_add_replace_of_an_ensemble_is_refused(root: Path, source: Path) -> None:
    folder = ensemble(root)
    with pytest.raises(InvalidInput, match="is an ensemble"):
        Repository(root).add(folder.name, {"upload": source}, {}, replace=True)
    assert not (root / TRASH).exists()


def test_entries_ensemble_has_the_versions_of_its_folders(root: Path) -> None:
    folder = ensemble(root, ENSEMBLE + "version_policy { latest { num_versions: 2 } }")
    for version in ("1", "3", "7"):
        (folder / version).mkdir()
    entries = Repository(root).entries()
    assert [(name, entry.version) for name, entry in entries.items()] == [("e", "7"), ("e:3", "3")]


def test_entries_ensemble_changes_with_its_configuration_and_labels(root: Path) -> None:
    folder = ensemble(root)
    stamps = {Repository(root).entries()["e"].stamp}
    (folder / "names.txt").write_text("cat\ndog\nbird\n")
    stamps.add(Repository(root).entries()["e"].stamp)
    (folder / "config.pbtxt").write_text(ENSEMBLE + "# changed\n")
    stamps.add(Repository(root).entries()["e"].stamp)
    assert len(stamps) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENSEMBLE.replace('value: "X"', 'value: "lost"'), "config.pbtxt: input 'X' of the ensemble is not in any"),
        (ENSEMBLE.replace('"a"', '"../a"'), "config.pbtxt: invalid model name '../a'"),
        (ENSEMBLE.replace('"a"', '"a:1"'), "config.pbtxt: invalid model name 'a:1'"),
        (ENSEMBLE.replace("dims: 4", "dims: 0"), "config.pbtxt: input 'X' has invalid dims"),
        ("platform: ensemble", "config.pbtxt: cannot be parsed"),
        ('platform: "ensemble"', "has 0 steps"),
        (ENSEMBLE.replace("names.txt", "other.txt"), "'other.txt' of output 'Y' cannot be read"),
    ],
)
def test_entries_invalid_ensemble_is_reported_with_the_reason(root: Path, text: str, words: str) -> None:
    ensemble(root, text)
    (entry,) = Repository(root).entries().values()
    assert (entry.name, entry.version) == ("e", "1")
    assert words in entry.problem


def test_remove_ensemble_moves_its_folder_to_the_trash(root: Path) -> None:
    ensemble(root)
    kept = Repository(root).remove("e")
    assert kept is not None
    assert (kept / "e" / "config.pbtxt").exists()


# -- restoring --------------------------------------------------------------------------------------------------------


def add(root: Path, content: bytes, *, replace: bool = False) -> None:
    file = root.parent / "file.onnx"
    file.write_bytes(content)
    Repository(root).add("m", {"file.onnx": file}, {}, replace=replace)


def content(root: Path) -> bytes:
    return Path(Repository(root).entries()["m"].path).read_bytes()


def test_restore_puts_back_what_was_replaced_and_again(root: Path) -> None:
    add(root, b"one")
    add(root, b"two", replace=True)
    Repository(root).restore("m")
    assert content(root) == b"one"
    Repository(root).restore("m")
    assert content(root) == b"two"


def test_restore_puts_back_what_was_removed_last(root: Path) -> None:
    for each in (b"one", b"two"):
        add(root, each)
        Repository(root).remove("m")
    Repository(root).restore("m")
    assert content(root) == b"two"
    assert not list(root.glob(".restoring-*"))


def test_restore_of_a_plain_file_has_its_settings(root: Path) -> None:
    (root / "m.onnx").write_bytes(b"plain")
    (root / "m.toml").write_text('thresholds.score = "0.5"')
    Repository(root).remove("m")
    add(root, b"new")
    Repository(root).restore("m")
    entry = Repository(root).entries()["m"]
    assert (Path(entry.path).name, entry.settings) == ("m.onnx", {"thresholds.score": "0.5"})


def test_restore_of_the_oldest_model_in_a_full_trash_keeps_it(root: Path) -> None:
    add(root, b"oldest")
    Repository(root).remove("m")
    for number in range(MAX_REMOVED - 1):
        lay(root, f"n{number}", "1")
        Repository(root).remove(f"n{number}")
    add(root, b"new")
    Repository(root).restore("m")
    assert content(root) == b"oldest"


@pytest.mark.parametrize("name", ["m", "other"])
def test_restore_without_a_removed_model_is_refused(root: Path, name: str) -> None:
    add(root, b"one")
    with pytest.raises(ModelNotFound, match="nothing to restore"):
        Repository(root).restore(name)
    assert content(root) == b"one"


@pytest.mark.parametrize("at", range(4))
def test_restore_that_fails_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    add(root, b"one")
    add(root, b"two", replace=True)
    rename, calls = os.rename, iter(range(100))

    def failing(source: str, target: str) -> None:
        if next(calls) == at:
            raise OSError(28, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with contextlib.suppress(Refused):
            Repository(root).restore("m")
    assert content(root) in (b"one", b"two")
    Repository(root).sweep()
    before = content(root)
    Repository(root).restore("m")
    assert content(root) != before, "neither is lost"


def test_sweep_finishes_an_interrupted_restoration(root: Path) -> None:
    add(root, b"one")
    (root / ".restoring-x").mkdir()
    (root / "m").rename(root / ".restoring-x" / "m")
    Repository(root).sweep()
    assert content(root) == b"one"
    assert not list(root.glob(".restoring-*"))


# -- models outside the repository ------------------------------------------------------------------------------------


def test_outside_entries_of_a_folder_are_found_in_each_layout(tmp_path: Path) -> None:
    for number, place in enumerate(("model.onnx", "2/model.onnx", "m/3/model.onnx")):
        folder = tmp_path / str(number)
        (folder / place).parent.mkdir(parents=True)
        (folder / place).write_bytes(b"x")
        (entry,) = outside_entries("m", folder)
        assert (entry.name, entry.path) == ("m", str(folder / place))


def test_outside_entries_of_a_folder_take_settings_and_versions(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.onnx").write_bytes(b"x")
    (tmp_path / "edged.toml").write_text('versions = "all"')
    assert [entry.name for entry in outside_entries("m", tmp_path)] == ["m", "m:1"]


def test_outside_entries_of_a_folder_without_one_model_keep_the_path(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (entry,) = outside_entries("m", tmp_path)
        assert entry.path in (str(tmp_path), str(tmp_path / "a.onnx"))
        (tmp_path / name).write_bytes(b"x")
    assert [entry.path for entry in outside_entries("m", tmp_path)] == [str(tmp_path)]
