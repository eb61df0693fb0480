"""The ring in shared memory: what a client writes is what the daemon reads, or the daemon says that it is not."""

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
from hypothesis import given
from hypothesis import strategies as st

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


def test_what_is_written_is_read(tmp_path: Path, segments: Segments) -> None:
    random = np.random.default_rng(0)
    with SharedRing(4, 100_000, folder=tmp_path) as ring:
        for size in (1, 63, 64, 4095, 4096, 100_000, 7):
            data = random.bytes(size)
            assert read(announced(segments, ring.put(data))) == data


def test_arrays_are_written_packed(tmp_path: Path, segments: Segments) -> None:
    image = np.arange(10 * 12 * 3, dtype=np.uint8).reshape(10, 12, 3)
    with SharedRing(4, 1000, folder=tmp_path) as ring:
        assert read(announced(segments, ring.put(image))) == image.tobytes()
        assert read(announced(segments, ring.put(image[::2, 3:9]))) == image[::2, 3:9].tobytes()


def test_the_newest_pictures_stay_and_older_ones_are_told_of(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(3, 100, folder=tmp_path) as ring:
        places = [ring.put(bytes([index]) * 100) for index in range(7)]
        for place in places[:4]:
            with pytest.raises(Overwritten):
                read(announced(segments, place))
        for index, place in enumerate(places[4:], 4):
            assert read(announced(segments, place)) == bytes([index]) * 100


def test_a_larger_picture_makes_a_larger_segment_and_what_was_announced_stays(
    tmp_path: Path, segments: Segments
) -> None:
    with SharedRing(3, 100, folder=tmp_path) as ring:
        before = ring.put(b"a" * 100)
        after = ring.put(b"b" * 10_000)
        assert before.segment != after.segment
        assert read(announced(segments, before)) == b"a" * 100
        assert read(announced(segments, after)) == b"b" * 10_000
        for _ in range(3):
            ring.put(b"c")
        assert [path.name for path in tmp_path.iterdir()] == [after.segment[1:]]


def test_a_slot_that_is_being_written_is_not_read(tmp_path: Path, segments: Segments) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        place = ring.put(b"a" * 100)
        picture = announced(segments, place)
        with (tmp_path / place.segment[1:]).open("r+b") as file:
            file.seek(place.offset)
            file.write(layout.STAMP.pack(0))
        with pytest.raises(Overwritten):
            read(picture)


@pytest.mark.parametrize("left", [0, 8, layout.HEADER, layout.HEADER + 50, layout.ALIGNED])
def test_a_segment_that_is_cut_off_is_an_error_and_no_crash(tmp_path: Path, segments: Segments, left: int) -> None:
    with SharedRing(2, 8000, folder=tmp_path) as ring:
        place = ring.put(b"a" * 8000)
        picture = announced(segments, place)
        os.truncate(tmp_path / place.segment[1:], place.offset + left)
        with pytest.raises(SegmentUnusable, match="cut off"):
            read(picture)
        with pytest.raises(InvalidInput, match=f"has {place.offset + left}"):
            announced(segments, place)


def test_a_segment_that_is_removed_can_be_read_by_whoever_has_it(tmp_path: Path, segments: Segments) -> None:
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
    assert descriptors() == before


def test_a_segment_that_may_not_be_read_is_refused(
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


def test_a_stream_keeps_few_segments_open_and_none_after_its_end(tmp_path: Path) -> None:
    before = descriptors()
    segments = Segments(tmp_path, own)
    with contextlib.ExitStack() as rings:
        for _ in range(10):
            ring = rings.enter_context(SharedRing(2, 100, folder=tmp_path))
            assert read(announced(segments, ring.put(b"x"))) == b"x"
        with_clients = descriptors()
        assert with_clients - before == 10 + 4
        segments.close()
        assert descriptors() == before + 10
    assert descriptors() == before


def test_an_error_that_somebody_keeps_keeps_no_segment_open(tmp_path: Path) -> None:
    """Tracebacks hold frames, and with them whatever their variables hold, often until the garbage collector comes."""
    before = descriptors()
    kept: list[BaseException] = []
    segments = Segments(tmp_path, own)
    with SharedRing(2, 100, folder=tmp_path) as ring:
        place = ring.put(b"a")
        late = announced(segments, place)
        ring.put(b"b")
        ring.put(b"c")
        for attempt in (lambda: read(late), lambda: segments.picture(place.segment, 0, 1, 0)):
            with pytest.raises((Overwritten, InvalidInput)) as raised:
                attempt()
            kept.append(raised.value)
    segments.close()
    assert descriptors() == before
    with pytest.raises(SegmentUnusable, match="before"):
        read(late)


# -- what is left behind ----------------------------------------------------------------------------------------------


def test_dropping_the_last_reference_removes_the_ring(tmp_path: Path) -> None:
    before = descriptors()
    ring = SharedRing(2, 100, folder=tmp_path)
    ring.put(b"x" * 1000)
    del ring
    assert not list(tmp_path.iterdir())
    assert descriptors() == before


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
    assert os.path.exists(sys.argv[1] + ring.segment), "the child took it away"
"""


def program(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder), how], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )


@pytest.mark.parametrize("how", ["end", "fork"])
def test_the_end_of_the_program_removes_the_ring(tmp_path: Path, how: str) -> None:
    with program(tmp_path, how) as client:
        client.communicate(timeout=30)
    assert client.returncode == 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_client_left_is_swept_and_readable_until_then(tmp_path: Path, segments: Segments) -> None:
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


def test_a_client_whose_process_cannot_be_seen_is_known_by_its_lock(tmp_path: Path) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        hidden = tmp_path / "edged-999999999-aa"  # as from another container
        (tmp_path / ring.segment[1:]).rename(hidden)
        sweep(tmp_path)
        assert hidden.exists()
    sweep(tmp_path)
    assert not hidden.exists()


def test_sweeping_leaves_what_is_not_ours(tmp_path: Path) -> None:
    for name in ("edged-999999999", "edged-x-1", "other-999999999-1", "edged--1"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "edged-999999999-folder").mkdir()
    os.mkfifo(tmp_path / "edged-999999999-pipe")
    (tmp_path / "edged-999999999-link").symlink_to(tmp_path / "edged-x-1")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 7


def test_two_rings_have_two_names(tmp_path: Path) -> None:
    with SharedRing(2, 100, folder=tmp_path) as one, SharedRing(2, 100, folder=tmp_path) as two:
        assert one.segment != two.segment


def test_a_full_disk_is_told_at_the_start_and_leaves_nothing(small_disk: Path) -> None:
    before = descriptors()
    with pytest.raises(OutOfSpace):
        SharedRing(4, 1 << 20, folder=small_disk)
    assert not list(small_disk.iterdir())
    with SharedRing(2, 1 << 16, folder=small_disk) as ring:
        with pytest.raises(OutOfSpace):
            ring.put(bytes(1 << 20))
        assert read(announced(Segments(small_disk, own), ring.put(b"goes on"))) == b"goes on"
    assert not list(small_disk.iterdir())
    assert descriptors() == before


@pytest.mark.parametrize(("slots", "size"), [(1, 10), (0, 10), (-1, 10), (5000, 10), (2, 0), (2, -1)])
def test_a_ring_that_cannot_be_is_refused(tmp_path: Path, slots: int, size: int) -> None:
    with pytest.raises(InvalidInput):
        SharedRing(slots, size, folder=tmp_path)


def test_a_segment_is_the_users_own_unless_a_group_is_let_in(tmp_path: Path) -> None:
    with SharedRing(2, 100, folder=tmp_path) as ring:
        assert stat.S_IMODE((tmp_path / ring.segment[1:]).stat().st_mode) == 0o600
    with SharedRing(2, 100, folder=tmp_path, group=os.getegid()) as ring:
        assert stat.S_IMODE((tmp_path / ring.segment[1:]).stat().st_mode) == 0o640


def test_no_group_is_let_in_for_a_daemon_that_may_read_anyway(tmp_path: Path) -> None:
    assert readers_group(tmp_path) is None
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
def test_only_peers_of_this_machine_are_local(peer: str, local: bool) -> None:
    assert is_local(peer) is local


# -- the reader against a writer that moves between any two of its steps ----------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.integers(2, 3))
def test_no_interleaving_gives_a_picture_that_was_never_announced(steps: list[int], slots: int) -> None:
    """The reader's three reads of a small picture, with any number of the writer's single writes before each."""
    memory = bytearray(slots * 16)

    def writer() -> Iterator[tuple[int, int]]:
        for stamp in range(1, 100):
            slot = (stamp - 1) % slots * 16
            memory[slot : slot + 8] = layout.STAMP.pack(0)
            yield stamp, 0
            for byte in range(8, 12):
                memory[slot + byte] = stamp
                yield stamp, 0
            memory[slot : slot + 8] = layout.STAMP.pack(stamp)
            yield stamp, stamp

    writing = writer()
    last = 0

    def write(count: int) -> None:
        nonlocal last
        for _ in range(count):
            last = next(writing)[1] or last

    while not last:
        write(1)
    stamp = last
    write(steps[0])

    class Memory:
        """As a segment reads, but with the writer at work before every read, and halfway through the picture."""

        name = "memory"
        turn = 1

        def read(self, place: memoryview, offset: int) -> str:
            half = len(place) // 2 if len(place) == 4 else len(place)
            place[:half] = memory[offset : offset + half]
            write(steps[self.turn % 4])
            self.turn += 1
            place[half:] = memory[offset + half : offset + len(place)]
            return ""

        def length(self) -> int:
            return len(memory)

    picture = SharedPicture(Memory(), (stamp - 1) % slots * 16, stamp, 4)  # type: ignore[arg-type]
    place = bytearray(4)
    try:
        _read_with_header(picture, place)
    except Overwritten:
        return
    assert place == bytes([stamp]) * 4


def _read_with_header(picture: SharedPicture, place: bytearray) -> None:
    before, layout.HEADER = layout.HEADER, 8  # a small header, for a small memory
    try:
        picture.read_into(memoryview(place))
    finally:
        layout.HEADER = before


@pytest.mark.timeout(60)
def test_a_writer_at_full_speed_never_has_a_torn_picture_read(tmp_path: Path) -> None:
    """Two processes at once: every picture that is taken is of one value throughout."""
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
    """Pictures read and overwritten, until there are some of both; each of those read is whole."""
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
