"""The ring in shared memory: the daemon reads the pictures that a client writes, or reports the reason."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edged import shared_layout as layout
from edged.api.auth.identity import Identity
from edged.api.endpoints.shared_memory import Segments, SharedPicture, is_local
from edged.client.shared import Place, SharedRing, readers_group, sweep
from edged.errors import InvalidInput, OutOfSpace, Overwritten, SegmentUnusable
from tests.waiting import descriptors


def own() -> Identity:
    return Identity("own", os.geteuid())


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    made = Segments(tmp_path, own)
    yield made
    made.close()


def announced(segments: Segments, place: Place) -> SharedPicture:
    return segments.picture(place.segment, place.offset, place.stamp, place.size)


def read(picture: SharedPicture) -> bytes:
    place = bytearray(picture.size)
    picture.read_into(memoryview(place))
    return bytes(place)


def test_ring_pictures_and_packed_arrays_are_read_as_written(tmp_path: Path, segments: Segments) -> None:
    random, image = np.random.default_rng(0), np.arange(360, dtype=np.uint8).reshape(10, 12, 3)
    with SharedRing(4, 100_000, folder=tmp_path) as ring:
        for data in map(random.bytes, (1, 63, 64, 4095, 4096, 100_000, 7)):
            assert read(announced(segments, ring.put(data))) == data
        for array in (image, image[::2, 3:9]):
            assert read(announced(segments, ring.put(array))) == array.tobytes()


def test_ring_keeps_the_newest_pictures(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(3, 100, folder=tmp_path) as ring:
        places = [ring.put(bytes([index]) * 100) for index in range(7)]
        for place in places[:4]:
            with pytest.raises(Overwritten):
                read(announced(segments, place))
        for index, place in enumerate(places[4:], 4):
            assert read(announced(segments, place)) == bytes([index]) * 100


def test_ring_larger_picture_moves_to_a_larger_segment(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(3, 100, folder=tmp_path) as ring:
        before = ring.put(b"a" * 100)
        after = ring.put(b"b" * 10_000)
        assert before.segment != after.segment
        assert read(announced(segments, before)) == b"a" * 100
        assert read(announced(segments, after)) == b"b" * 10_000
        for _ in range(3):
            ring.put(b"c")
        assert [path.name for path in tmp_path.iterdir()] == [after.segment[1:]]


def test_ring_that_grows_again_keeps_the_newest_pictures(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(3, 10, folder=tmp_path) as ring:
        places = [ring.put(bytes([index]) * 100 * index) for index in range(1, 6)]
        assert [read(announced(segments, place))[0] for place in places[2:]] == [3, 4, 5]
        for _ in range(3):
            last = ring.put(b"c")
        assert [path.name for path in tmp_path.iterdir()] == [last.segment[1:]]
    assert not list(tmp_path.iterdir())


def test_picture_in_a_slot_that_is_being_written_is_overwritten(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        place = ring.put(b"a" * 100)
        picture = announced(segments, place)
        with (tmp_path / place.segment[1:]).open("r+b") as file:
            file.seek(place.offset)
            file.write(layout.STAMP.pack(0))
        with pytest.raises(Overwritten):
            read(picture)


def test_picture_that_cannot_be_read_fails_in_the_same_way_again(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        places = [ring.put(bytes(100)) for _ in range(3)]
        lost, unreadable = announced(segments, places[0]), announced(segments, places[2])
        for _ in range(2):
            with pytest.raises(Overwritten, match="slots"):
                read(lost)
        os.truncate(tmp_path / places[2].segment[1:], 0)
        for _ in range(2):
            with pytest.raises(SegmentUnusable, match="truncated"):
                read(unreadable)
        with pytest.raises(Overwritten):
            read(lost)


@pytest.mark.parametrize("left", [0, 8, layout.HEADER, layout.HEADER + 50, layout.ALIGNED])
def test_picture_in_a_truncated_segment_is_unusable(tmp_path: Path, segments: Segments, left: int) -> None:
    with SharedRing(2, 8000, folder=tmp_path) as ring:
        place = ring.put(b"a" * 8000)
        picture = announced(segments, place)
        os.truncate(tmp_path / place.segment[1:], place.offset + left)
        with pytest.raises(SegmentUnusable, match="truncated"):
            read(picture)
        with pytest.raises(InvalidInput, match=f"has {place.offset + left}"):
            announced(segments, place)


def test_picture_of_a_removed_segment_stays_readable(tmp_path: Path, segments: Segments) -> None:
    ring = SharedRing(2, 100, folder=tmp_path)
    place = ring.put(b"a" * 100)
    picture = announced(segments, place)
    ring.close()
    assert not list(tmp_path.iterdir())
    segments.close()
    assert read(picture) == b"a" * 100
    with pytest.raises(SegmentUnusable):
        announced(Segments(tmp_path, own), place)


@pytest.mark.parametrize(
    ("offset", "size", "stamp"),
    [
        *((offset, 10, 1) for offset in (-1, -(2**63), 2**63, 2**64 - 1)),
        *((0, size, 1) for size in (8192, 2**63, 2**64 - 1, 0, -1)),
        *((offset, 1, 1) for offset in (8192, 8192 - layout.HEADER)),
        (2**64 - 64, 64, 1),
        *((0, 10, stamp) for stamp in (0, -1)),
    ],
)
def test_picture_outside_of_the_segment_or_without_a_stamp_is_refused(
    tmp_path: Path, segments: Segments, offset: int, size: int, stamp: int
) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        assert (tmp_path / ring.segment[1:]).stat().st_size == 8192
        with pytest.raises(InvalidInput):
            segments.picture(ring.segment, offset, stamp, size)


@pytest.mark.parametrize(
    "name", ["", "/", "passwd", "//edged-a", "/edged-a/b", "edged-/../x", "edged-none", "edged-\0"]
)
def test_picture_in_a_file_that_is_not_a_segment_is_refused(tmp_path: Path, segments: Segments, name: str) -> None:
    (tmp_path / "passwd").write_bytes(bytes(1000))
    (tmp_path / "edged-a").mkdir()
    (tmp_path / "edged-a" / "b").write_bytes(bytes(1000))
    before = descriptors()
    with pytest.raises(SegmentUnusable):
        segments.picture(name, 0, 1, 10)
    assert descriptors() <= before  # fewer if something of an earlier test was closed


def test_picture_in_an_unreadable_segment_is_refused(
    tmp_path: Path, segments: Segments, as_nobody: Callable[[], None]
) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "edged-hers").write_bytes(bytes(1000))
    (tmp_path / "edged-hers").chmod(0o600 if os.geteuid() == 0 else 0o000)
    as_nobody()
    with pytest.raises(SegmentUnusable, match="Permission denied"):
        segments.picture("/edged-hers", 0, 1, 10)


def test_segments_few_stay_open_and_none_after_close(tmp_path: Path) -> None:
    before = descriptors()
    segments = Segments(tmp_path, own)
    errors: list[BaseException] = []  # their tracebacks keep frames and variables alive
    with contextlib.ExitStack() as rings:
        for _ in range(10):
            ring = rings.enter_context(SharedRing(2, 100, folder=tmp_path))
            place = ring.put(b"x")
            assert read(announced(segments, place)) == b"x"
        assert descriptors() - before <= 10 + 4
        late = announced(segments, place)
        ring.put(b"y")
        ring.put(b"z")
        for attempt in (lambda: read(late), lambda: segments.picture(place.segment, 0, 1, 0)):
            with pytest.raises((Overwritten, InvalidInput)) as raised:
                attempt()
            errors.append(raised.value)
        segments.close()
        assert descriptors() <= before + 10
        with pytest.raises(Overwritten):
            read(late)
    assert descriptors() <= before  # fewer if something of an earlier test was closed


# -- leftovers --------------------------------------------------------------------------------------------------------


_PROGRAM = """
import os, sys, time
from pathlib import Path
from edged.client.shared import SharedRing
ring = SharedRing(2, 100, folder=Path(sys.argv[1]))
print(ring.segment, flush=True)
if sys.argv[2] == "fork" and os.fork() == 0:
    raise SystemExit
if sys.argv[2] == "wait":
    time.sleep(60)
if sys.argv[2] == "fork":
    os.wait()
    assert os.path.exists(sys.argv[1] + ring.segment), "the child removed it"
"""


def program(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder), how], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )


@pytest.mark.parametrize("how", ["end", "fork"])
def test_ring_is_removed_with_its_program(tmp_path: Path, how: str) -> None:
    with program(tmp_path, how) as client:
        client.communicate(timeout=30)
    assert client.returncode == 0
    assert not list(tmp_path.iterdir())


def test_ring_of_a_killed_program_is_swept_and_readable_until_then(tmp_path: Path, segments: Segments) -> None:
    with program(tmp_path, "wait") as client:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        assert [path.name for path in tmp_path.iterdir()] == [name[1:]]
        sweep(tmp_path)
        assert list(tmp_path.iterdir()), "the client lives"
        client.send_signal(signal.SIGKILL)
    with pytest.raises(Overwritten):
        read(segments.picture(name, 0, 5, 100))
    SharedRing(2, 100, folder=tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_sweep_segment_of_another_container_stays_while_locked(tmp_path: Path) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        hidden = tmp_path / "edged-999999999-aa"  # as from another container
        (tmp_path / ring.segment[1:]).rename(hidden)
        sweep(tmp_path)
        assert hidden.exists()
    sweep(tmp_path)
    assert not hidden.exists()


def test_sweep_leaves_other_files(tmp_path: Path) -> None:
    for name in ("edged-999999999", "edged-x-1", "other-999999999-1", "edged--1"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "edged-999999999-folder").mkdir()
    os.mkfifo(tmp_path / "edged-999999999-pipe")
    (tmp_path / "edged-999999999-link").symlink_to(tmp_path / "edged-x-1")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 7


def test_ring_without_space_raises_and_leaves_nothing(small_disk: Path) -> None:
    before = descriptors()
    with pytest.raises(OutOfSpace):
        SharedRing(4, 1 << 20, folder=small_disk)
    assert not list(small_disk.iterdir())
    ring = SharedRing(2, 1 << 16, folder=small_disk)
    with pytest.raises(OutOfSpace):
        ring.put(bytes(1 << 20))
    assert read(announced(Segments(small_disk, own), ring.put(b"goes on"))) == b"goes on"
    del ring
    assert not list(small_disk.iterdir())
    assert descriptors() <= before  # fewer if something of an earlier test was closed


@pytest.mark.parametrize(("slots", "size"), [(1, 10), (0, 10), (-1, 10), (5000, 10), (2, 0), (2, -1)])
def test_ring_invalid_size_raises(tmp_path: Path, slots: int, size: int) -> None:
    with pytest.raises(InvalidInput):
        SharedRing(slots, size, folder=tmp_path)


def test_ring_is_readable_only_for_its_user_and_the_given_group(tmp_path: Path) -> None:
    for group, mode in ((None, 0o600), (os.getegid(), 0o640)):
        with SharedRing(2, 100, folder=tmp_path, group=group) as ring:
            assert stat.S_IMODE((tmp_path / ring.segment[1:]).stat().st_mode) == mode
    assert readers_group(tmp_path) is None  # a daemon of this user or of root needs none
    assert readers_group(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("unix:", True),
        ("unix:/run/edged.sock", True),
        ("ipv4:127.0.0.1:5000", True),
        ("ipv6:[::1]:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv4:192.168.1.5:5000", False),
        ("ipv6:[2001:db8::1]:5", False),
        ("", False),
    ],
)
def test_is_local_only_for_peers_of_this_machine(peer: str, local: bool) -> None:
    assert is_local(peer) is local


@pytest.mark.timeout(60)
def test_picture_is_never_torn_by_a_fast_writer(tmp_path: Path) -> None:
    """With a writer in another process, every picture that is read has one value throughout."""
    script = (
        "import sys; from pathlib import Path; from edged.client.shared import SharedRing\n"
        "ring = SharedRing(2, 200_000, folder=Path(sys.argv[1])); print(ring.segment, flush=True)\n"
        "while True:\n"
        "    for value in range(256): ring.put(bytes([value]) * 200_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            name = client.stdout.readline().strip()
            taken, overwritten = _read_on(Segments(tmp_path, own), tmp_path / name[1:])
        finally:
            client.kill()
    assert taken
    assert overwritten


def _read_on(segments: Segments, path: Path) -> tuple[int, int]:
    """Read pictures, check that each is whole, and return how many were read and how many were overwritten."""
    taken = overwritten = 0
    for _ in range(200_000):
        stamp = _stamp(path)
        try:
            data = read(segments.picture(path.name, 0, stamp, 200_000)) if stamp else b""
        except Overwritten:
            overwritten += 1
            continue
        if data:
            assert data == data[:1] * len(data)
            taken += 1
        if taken > 200 and overwritten > 20:
            break
    return taken, overwritten


def _stamp(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        return int(layout.STAMP.unpack(file.read(8))[0])
