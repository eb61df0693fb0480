"""Shared memory regions that clients register: valid objects, use in requests, and objects that change meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edged.api.auth.identity import CURRENT, Identity
from edged.api.auth.policy import Caller
from edged.api.inference.requests import Place
from edged.api.inference.shared_memory import Regions, RegionSource, SharedMemoryAccess
from edged.errors import AlreadyExists, InvalidInput, NotFound, Overloaded, Refused
from tests.waiting import descriptors

OWN = Identity("own", os.geteuid())
UNIX, TCP = "unix:", "ipv4:127.0.0.1:4711"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an object of 128 bytes."""
    (tmp_path / "shm").mkdir()
    made(tmp_path / "shm", "object", 128)
    return tmp_path / "shm"


@pytest.fixture
def regions(folder: Path) -> Regions:
    found = Regions(folder)
    found.register("r", "/object", 32, 64, OWN)
    return found


def made(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(bytes(range(size)))
    path.chmod(0o600)
    return path


def source(regions: Regions, place: Place) -> RegionSource:
    return RegionSource(regions.target(place, "input 'x'"), place)


def read(regions: Regions, place: Place) -> bytes:
    memory = bytearray(place.size)
    source(regions, place).read_into(memoryview(memory))
    return bytes(memory)


def write(regions: Regions, place: Place, contents: bytes) -> None:
    regions.target(place, "output 'y'").write(memoryview(contents), place, "output 'y'")


@pytest.mark.parametrize(("place", "contents"), [((4, 8), range(36, 44)), ((0, 64), range(32, 96))])
def test_read_returns_the_bytes_at_the_place(regions: Regions, place: tuple[int, int], contents: range) -> None:
    assert read(regions, Place("r", *place)) == bytes(contents)


def test_write_changes_only_the_place(regions: Regions, folder: Path) -> None:
    before = (folder / "object").read_bytes()
    write(regions, Place("r", 8, 16), b"0123456789")
    assert (folder / "object").read_bytes() == before[:40] + b"0123456789" + before[50:]
    with pytest.raises(InvalidInput, match="'y'"):
        write(regions, Place("r", 0, 8), bytes(9))
    assert (folder / "object").read_bytes() == before[:40] + b"0123456789" + before[50:]


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (65, 0), (1, 64), (2**62, 8), (8, 2**62)])
def test_target_place_outside_of_the_region_is_refused(regions: Regions, offset: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        source(regions, Place("r", offset, size))


def test_truncated_object_is_refused_at_each_use_and_does_not_grow(regions: Regions, folder: Path) -> None:
    place = Place("r", 0, 64)
    early, target = source(regions, place), regions.target(place, "output 'y'")
    os.truncate(folder / "object", 40)
    for use in (
        lambda: source(regions, place),
        lambda: early.read_into(memoryview(bytearray(64))),
        lambda: target.write(memoryview(bytes(64)), place, "output 'y'"),
    ):
        with pytest.raises(InvalidInput):
            use()
    assert (folder / "object").stat().st_size == 40
    assert read(regions, Place("r", 0, 8)) == bytes(range(32, 40))


def test_unregister_region_in_use_leaves_it_readable(regions: Regions, folder: Path) -> None:
    early, memory = source(regions, Place("r", 0, 8)), bytearray(8)
    regions.unregister("r")
    (folder / "object").unlink()
    early.read_into(memoryview(memory))
    assert bytes(memory) == bytes(range(32, 40))


def test_unregister_closes_the_files(folder: Path) -> None:
    regions, before = Regions(folder), descriptors()
    for number in range(20):
        regions.register(str(number), "object", 0, 64, OWN)
    assert descriptors() <= before + 20
    regions.unregister("3")
    assert [region.name for region in regions.listed()] == [str(n) for n in range(20) if n != 3]
    regions.unregister("")
    assert descriptors() <= before  # fewer if something of an earlier test was closed


def test_register_taken_name_and_find_unknown_name_are_refused(regions: Regions) -> None:
    with pytest.raises(AlreadyExists, match="'r'"):
        regions.register("r", "object", 0, 8, OWN)
    for ask in (regions.find, regions.listed, lambda name: source(regions, Place(name, 0, 1))):
        with pytest.raises(NotFound, match="'s'"):
            ask("s")
    regions.unregister("s")
    assert [(each.name, each.key, each.offset, each.size) for each in regions.listed("r")] == [("r", "/object", 32, 64)]


def symbolic(folder: Path) -> str:
    (folder / "link").symlink_to(made(folder.parent, "secret", 64))
    return "link"


def hard_linked(folder: Path) -> str:
    os.link(made(folder.parent, "secret", 64), folder / "second")
    return "second"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe", 0o600)
    return "pipe"


def open_to_all(folder: Path) -> str:
    made(folder, "open", 64).chmod(0o666)
    return "open"


def directory(folder: Path) -> str:
    (folder / "inner").mkdir()
    return "inner"


def inside(folder: Path) -> str:
    made(folder / directory(folder), "object", 64)
    return "inner/object"


def outside(folder: Path) -> str:
    return f"../{made(folder.parent, 'secret', 64).name}"


def absolute(folder: Path) -> str:
    return str(made(folder.parent, "secret", 64))


@pytest.mark.parametrize(
    "key",
    [
        *("nothing", "//object", "..", "/", "", "a\0b", "x" * 300),
        *(outside, absolute, inside, symbolic, hard_linked, pipe, directory, open_to_all),
    ],
)
def test_register_key_that_is_not_an_object_of_the_client_is_refused(
    folder: Path, key: str | Callable[[Path], str]
) -> None:
    regions, before = Regions(folder), descriptors()
    with pytest.raises(InvalidInput):
        regions.register("r", key if isinstance(key, str) else key(folder), 0, 8, OWN)
    assert not regions.listed()
    assert descriptors() <= before  # fewer if something of an earlier test was closed


@pytest.mark.parametrize(("offset", "size"), [(0, 129), (128, 1), (0, 0), (2**63, 8), (0, 2**63), (2**64 - 1, 2)])
def test_register_range_outside_the_object_is_refused(folder: Path, offset: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="'r'"):
        Regions(folder).register("r", "object", offset, size, OWN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_write_to_a_read_only_object_is_refused(regions: Regions, folder: Path) -> None:
    made(folder, "mine", 16).chmod(0o400)
    regions.register("mine", "mine", 0, 16, OWN)
    assert read(regions, Place("mine", 0, 4)) == bytes(range(4))
    with pytest.raises(InvalidInput):
        write(regions, Place("mine", 0, 4), b"abcd")


@pytest.mark.parametrize(
    ("mode", "is_read", "is_written"), [(0o600, False, False), (0o640, True, False), (0o660, True, True)]
)
def test_register_object_that_the_client_could_not_open_is_refused(
    folder: Path, mode: int, is_read: bool, is_written: bool
) -> None:
    (folder / "object").chmod(mode)
    regions, group = Regions(folder), Identity("socket", gid=os.getegid())
    if not is_read:
        with pytest.raises(InvalidInput):
            regions.register("r", "object", 0, 64, group)
        return
    regions.register("r", "object", 0, 64, group)
    assert regions.find("r").is_writable == is_written
    with contextlib.nullcontext() if is_written else pytest.raises(InvalidInput):
        write(regions, Place("r", 0, 8), b"contents")
    assert (folder / "object").read_bytes().startswith(b"contents") == is_written


def test_regions_client_over_tcp_is_refused_unless_allowed(folder: Path) -> None:
    closed, over_tcp = SharedMemoryAccess(folder), SharedMemoryAccess(folder, over_tcp=True)
    assert not closed.regions(UNIX).listed()
    assert not over_tcp.regions(TCP).listed()
    for access, peer in ((closed, TCP), (closed, ""), (over_tcp, "ipv4:10.0.0.1:80")):
        for use in (
            lambda access=access, peer=peer: access.register(peer, "r", "object", 0, 8),
            lambda access=access, peer=peer: access.locate(peer)(Place("r", 0, 8), "input 'x'"),
            lambda access=access, peer=peer: access.target(peer, Place("r", 0, 8), "output 'y'"),
        ):
            with pytest.raises(Refused):
                use()


@pytest.fixture
def calls_as(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A function that sets the caller of the current call to a client with this token name."""
    (tmp_path / "socket").touch(0o600)
    address, before = f"unix:{tmp_path}/socket", CURRENT.get()
    yield lambda name: CURRENT.set(Caller(name, frozenset(), f"token {name}", has_shown=True, address=address)) and None
    CURRENT.set(before)


def test_regions_of_another_client_cannot_be_listed_used_or_unregistered(
    folder: Path, calls_as: Callable[[str], None]
) -> None:
    access = SharedMemoryAccess(folder)
    calls_as("anna")
    access.register(UNIX, "r", "object", 0, 64)
    calls_as("ben")
    assert not access.regions(UNIX).listed()
    with pytest.raises(NotFound):
        access.target(UNIX, Place("r", 0, 8), "output 'y'")
    access.regions(UNIX).unregister("r")
    access.regions(UNIX).unregister("")
    access.register(UNIX, "r", "object", 0, 32)
    calls_as("anna")
    assert access.regions(UNIX).find("r").size == 64


def test_register_over_the_quota_of_a_client_leaves_room_for_others(
    folder: Path, calls_as: Callable[[str], None]
) -> None:
    access = SharedMemoryAccess(folder)
    calls_as("greedy")
    for number in range(1024):
        access.register(UNIX, str(number), "object", 0, 64)
    with pytest.raises(Overloaded):
        access.register(UNIX, "more", "object", 0, 64)
    calls_as("modest")
    access.register(UNIX, "r", "object", 0, 64)
