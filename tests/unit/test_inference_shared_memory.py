"""Shared memory that clients registered: what may be one, and what becomes of a request whose memory has gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edged.api.auth.identity import CURRENT, Identity
from edged.api.auth.policy import Caller
from edged.api.inference.requests import Place
from edged.api.inference.shared_memory import Regions, SharedMemoryAccess
from edged.errors import AlreadyExists, InvalidInput, NotFound, Overloaded, Refused

OWN = Identity("own", os.geteuid())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def regions(folder: Path) -> Regions:
    made(folder, "object", 128)
    found = Regions(folder)
    found.register("r", "/object", 32, 64, OWN)
    return found


def made(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(bytes(index % 251 for index in range(size)))
    path.chmod(0o600)
    return path


def read(regions: Regions, place: Place) -> bytes:
    source = regions.source(place, "input 'x'")
    memory = bytearray(source.size)
    source.read_into(memoryview(memory))
    return bytes(memory)


def test_a_tensor_is_read_from_its_place_in_the_region(regions: Regions, folder: Path) -> None:
    assert read(regions, Place("r", 4, 8)) == (folder / "object").read_bytes()[36:44]
    assert read(regions, Place("r", 0, 64)) == (folder / "object").read_bytes()[32:96]


def test_an_output_is_written_to_its_place_and_nowhere_else(regions: Regions, folder: Path) -> None:
    before = (folder / "object").read_bytes()
    place = Place("r", 8, 16)
    regions.target(place, "output 'y'").write(memoryview(b"0123456789"), place, "output 'y'")
    assert (folder / "object").read_bytes() == before[:40] + b"0123456789" + before[50:]


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (65, 0), (1, 64), (2**62, 8), (8, 2**62)])
def test_a_place_outside_of_the_region_is_refused(regions: Regions, offset: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        regions.source(Place("r", offset, size), "input 'x'")


def test_an_output_larger_than_its_place_is_refused(regions: Regions, folder: Path) -> None:
    before = (folder / "object").read_bytes()
    place = Place("r", 0, 8)
    with pytest.raises(InvalidInput, match="'y'"):
        regions.target(place, "output 'y'").write(memoryview(bytes(9)), place, "output 'y'")
    assert (folder / "object").read_bytes() == before


def test_an_object_that_was_cut_off_is_refused_at_each_use_and_does_not_grow(regions: Regions, folder: Path) -> None:
    place = Place("r", 0, 64)
    source, target = regions.source(place, "input 'x'"), regions.target(place, "output 'y'")
    os.truncate(folder / "object", 40)
    with pytest.raises(InvalidInput, match="goes to byte 96 of '/object', which has 40"):
        regions.source(place, "input 'x'")
    with pytest.raises(InvalidInput, match="was cut off"):
        source.read_into(memoryview(bytearray(64)))
    with pytest.raises(InvalidInput, match="which has 40"):
        target.write(memoryview(bytes(64)), place, "output 'y'")
    assert (folder / "object").stat().st_size == 40
    assert read(regions, Place("r", 0, 8))  # what is still there can be read


def test_a_region_in_use_outlives_its_being_forgotten(regions: Regions, folder: Path) -> None:
    source = regions.source(Place("r", 0, 8), "input 'x'")
    regions.unregister("r")
    (folder / "object").unlink()
    memory = bytearray(8)
    source.read_into(memoryview(memory))
    assert bytes(memory) == bytes(range(32, 40))


def test_forgotten_regions_leave_no_file_open(folder: Path) -> None:
    made(folder, "object", 64)
    regions, before = Regions(folder), len(os.listdir("/proc/self/fd"))
    for number in range(20):
        regions.register(str(number), "object", 0, 64, OWN)
    assert len(os.listdir("/proc/self/fd")) == before + 20
    regions.unregister("3")
    assert [region.name for region in regions.listed()] == [str(n) for n in range(20) if n != 3]
    regions.unregister("")
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_are_taken_once_and_unknown_ones_are_not_found(regions: Regions) -> None:
    with pytest.raises(AlreadyExists, match="'r'"):
        regions.register("r", "object", 0, 8, OWN)
    for ask in (regions.find, regions.listed):
        with pytest.raises(NotFound, match="'s'"):
            ask("s")
    with pytest.raises(NotFound, match="'s'"):
        regions.source(Place("s", 0, 1), "input 'x'")
    regions.unregister("s")
    assert [(each.name, each.key, each.offset, each.size) for each in regions.listed("r")] == [("r", "/object", 32, 64)]


def linked(folder: Path) -> str:
    (folder / "link").symlink_to(made(folder.parent, "secret", 64))
    return "link"


def hard_linked(folder: Path) -> str:
    os.link(made(folder.parent, "secret", 64), folder / "second")
    return "second"


def piped(folder: Path) -> str:
    os.mkfifo(folder / "pipe", 0o600)
    return "pipe"


def writable_by_all(folder: Path) -> str:
    made(folder, "open", 64).chmod(0o666)
    return "open"


def directory(folder: Path) -> str:
    (folder / "inner").mkdir()
    return "inner"


def inside(folder: Path) -> str:
    directory(folder)
    made(folder / "inner", "object", 64)
    return "inner/object"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (lambda _: "nothing", "there is none"),
        (lambda folder: f"../{made(folder.parent, 'secret', 64).name}", "no / but the first"),
        (lambda folder: str(made(folder.parent, "secret", 64)), "no / but the first"),
        (lambda _: "//object", "no / but the first"),
        (lambda _: "..", "no / but the first"),
        (lambda _: "/", "no / but the first"),
        (lambda _: "", "no / but the first"),
        (lambda _: "a\0b", "no / but the first"),
        (lambda _: "x" * 300, "no / but the first"),
        (inside, "no / but the first"),
        (linked, "symbolic link"),
        (hard_linked, "second name"),
        (piped, "another kind of file"),
        (directory, "directory"),
        (writable_by_all, "everybody"),
    ],
)
def test_what_is_no_object_of_the_clients_own_is_refused(folder: Path, key: Callable[[Path], str], words: str) -> None:
    regions, before = Regions(folder), len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidInput, match=words):
        regions.register("r", key(folder), 0, 8, OWN)
    assert not regions.listed()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("offset", "size"), [(0, 129), (128, 1), (0, 0), (2**63, 8), (0, 2**63), (2**64 - 1, 2)])
def test_a_region_that_its_object_does_not_hold_is_refused(folder: Path, offset: int, size: int) -> None:
    made(folder, "object", 128)
    with pytest.raises(InvalidInput, match="'r'"):
        Regions(folder).register("r", "object", offset, size, OWN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_an_object_that_may_only_be_read_is_read_and_not_written(regions: Regions, folder: Path) -> None:
    made(folder, "mine", 16).chmod(0o400)
    regions.register("mine", "mine", 0, 16, OWN)
    assert read(regions, Place("mine", 0, 4)) == bytes(range(4))
    with pytest.raises(InvalidInput, match="may only be read"):
        regions.target(Place("mine", 0, 4), "output 'y'").write(memoryview(b"abcd"), Place("mine", 0, 4), "output 'y'")


def test_regions_client_over_tcp_is_refused_unless_allowed(folder: Path) -> None:
    closed, open_to_tcp = SharedMemoryAccess(folder), SharedMemoryAccess(folder, over_tcp=True)
    assert not closed.regions("unix:").listed()
    assert not open_to_tcp.regions("ipv4:127.0.0.1:4711").listed()
    for access, peer in ((closed, "ipv4:127.0.0.1:4711"), (closed, ""), (open_to_tcp, "ipv4:10.0.0.1:80")):
        with pytest.raises(Refused, match="unix socket"):
            access.regions(peer)
        with pytest.raises(Refused):
            access.register(peer, "r", "object", 0, 8)
        with pytest.raises(Refused):
            access.locate(peer)(Place("r", 0, 8), "input 'x'")
        with pytest.raises(Refused):
            access.target(peer, Place("r", 0, 8), "output 'y'")


@pytest.fixture
def calls_as() -> Iterator[Callable[[Caller], None]]:
    before = CURRENT.get()
    yield CURRENT.set
    CURRENT.set(before)


def token(name: str, path: Path) -> Caller:
    """One that shows a token at a socket."""
    return Caller(name, frozenset(), f"token {name}", has_shown=True, address=f"unix:{path}")


def test_regions_of_another_client_cannot_be_listed_used_or_unregistered(
    folder: Path, tmp_path: Path, calls_as: Callable[[Caller], None]
) -> None:
    made(folder, "object", 64)
    (tmp_path / "socket").touch(0o600)
    access, anna, ben = (
        SharedMemoryAccess(folder),
        token("anna", tmp_path / "socket"),
        token("ben", tmp_path / "socket"),
    )
    calls_as(anna)
    access.register("unix:", "r", "object", 0, 64)
    calls_as(ben)
    assert not access.regions("unix:").listed()
    with pytest.raises(NotFound):
        access.target("unix:", Place("r", 0, 8), "output 'y'")
    access.regions("unix:").unregister("r")
    access.regions("unix:").unregister("")
    access.register("unix:", "r", "object", 0, 32)
    calls_as(anna)
    assert access.regions("unix:").find("r").size == 64


def test_register_more_than_the_quota_leaves_room_for_others(
    folder: Path, tmp_path: Path, calls_as: Callable[[Caller], None]
) -> None:
    made(folder, "object", 64)
    (tmp_path / "socket").touch(0o600)
    access = SharedMemoryAccess(folder)
    calls_as(token("greedy", tmp_path / "socket"))
    for number in range(1024):
        access.register("unix:", str(number), "object", 0, 64)
    with pytest.raises(Overloaded):
        access.register("unix:", "more", "object", 0, 64)
    calls_as(token("modest", tmp_path / "socket"))
    access.register("unix:", "r", "object", 0, 64)


@pytest.mark.parametrize(
    ("mode", "is_read", "is_written"), [(0o600, False, False), (0o640, True, False), (0o660, True, True)]
)
def test_register_object_that_the_client_could_not_open_is_refused(
    folder: Path, mode: int, is_read: bool, is_written: bool
) -> None:
    group = Identity("socket", gid=os.getegid())
    made(folder, "object", 64).chmod(mode)
    regions = Regions(folder)
    if not is_read:
        with pytest.raises(InvalidInput):
            regions.register("r", "object", 0, 64, group)
        return
    regions.register("r", "object", 0, 64, group)
    assert regions.find("r").is_writable == is_written
