"""Sharing of engines through a folder, which a hostile or broken store is made of by changing files."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import os
import socketserver
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.contract import Recipe
from edged.config.schema import Fleet
from edged.engines.builder import Task
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.maker import Maker
from edged.errors import (
    AlreadyExists,
    ConfigError,
    DaemonUnavailable,
    InvalidInput,
    NotFound,
    OutOfMemory,
    Refused,
    WrongAnswers,
)
from edged.fleet import manifest as manifests
from edged.fleet.bucket import Bucket, Patience, check_address
from edged.fleet.keys import Keys, is_signed
from edged.fleet.leases import Leases, Pace
from edged.fleet.manifest import Signed
from edged.fleet.sharing import EngineSharing, Found, Timing
from edged.fleet.shelf import Shelf
from edged.store.key import EngineKey
from edged.store.store import Store
from tests.unit.control_room import Clock, ControlRoom, key_of, model, put, record_of
from tests.waiting import until

pytest.importorskip("obstore")
pytest.importorskip("nacl")

RECIPE = Recipe("openvino")
KEY = key_of(model(), RECIPE)
FAST = Timing(0.01, Pace(0.0, 0.01, 10.0), Patience(2.0), (30.0,))


class Box:
    """One box: its store of engines, keys and sharing, with the bucket in `shared`."""

    def __init__(self, root: Path, shared: Path, name: str = "dock", **settings: object) -> None:
        shared.mkdir(exist_ok=True)
        self.root, self.shared, self.name = root / name, shared, name
        self.now = 0.0
        self.store = Store(self.root / "cache")
        self.sharing = EngineSharing(self.store, self.root, FAST, name, lambda: self.now)
        self.public = self.sharing.keys.generate()
        self.configure(**settings)

    def configure(self, **settings: object) -> None:
        self.sharing.reconfigure(msgspec.convert({"store": f"file://{self.shared}", "publish": True} | settings, Fleet))

    def trust(self, other: Box) -> None:
        self.sharing.keys.trust(other.name, other.public)

    async def publish(self, content: bytes = b"engine") -> EngineKey:
        put(self.store, record_of(KEY, RECIPE, content=content), content)
        await self.sharing.built(KEY, None)
        return KEY

    async def fetched(self) -> bytes:
        found = await self.sharing.find(KEY)
        assert found is not None, [*self.sharing.troubles()]
        out = self.root / "out"
        out.mkdir()
        record = await self.sharing.fetch(found, out)
        assert record.shared_by == found.signer
        return (out / "engine.bin").read_bytes()

    @property
    def trouble(self) -> str:
        return "; ".join(each.message for each in self.sharing.troubles())


@pytest.fixture
def boxes(tmp_path: Path) -> tuple[Box, Box]:
    one, other = Box(tmp_path, tmp_path / "shared", "dock"), Box(tmp_path, tmp_path / "shared", "yard")
    other.trust(one)
    return one, other


# -- from box to box --------------------------------------------------------------------------------------------------


async def test_engine_of_a_trusted_box_is_found_and_fetched(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    assert await other.sharing.find(KEY) is None
    await one.publish()
    assert await other.fetched() == b"engine"
    found = await other.sharing.find(KEY)
    assert found is not None
    assert found.signer == "dock"
    assert not other.trouble + one.trouble


async def test_engine_with_another_key_is_not_found(boxes: tuple[Box, Box]) -> None:
    await boxes[0].publish()
    assert await boxes[1].sharing.find(key_of(model(), RECIPE, cpu__model="other")) is None


async def test_engine_of_an_unknown_box_is_refused_until_it_is_trusted(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    other.sharing.keys.untrust("dock")
    assert await other.sharing.find(KEY) is None
    assert f"not trusted; to trust this key: edged fleet trust NAME {one.public}" in other.trouble
    other.trust(one)
    assert await other.sharing.find(KEY) is not None
    assert not other.trouble


def spoil_signature(signed: Signed) -> Signed:
    return msgspec.structs.replace(signed, signature="00" * 64)


def spoil_manifest(signed: Signed) -> Signed:
    return msgspec.structs.replace(signed, manifest=signed.manifest.replace('"m"', '"n"'))


def other_signer(signed: Signed) -> Signed:
    return msgspec.structs.replace(signed, signer="11" * 32)


@pytest.mark.parametrize("change", [spoil_signature, spoil_manifest, other_signer])
async def test_altered_manifest_is_refused(boxes: tuple[Box, Box], change: Any) -> None:
    one, other = boxes
    await one.publish()
    place = one.shared / manifests.place("engine", KEY.digest)
    place.write_bytes(msgspec.json.encode(change(manifests.parse(place.read_bytes()))))
    assert await other.sharing.find(KEY) is None
    assert "is not used" in other.trouble


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b"{" * 9000, b"x" * (manifests.LARGEST + 1)])
async def test_damaged_manifest_is_refused(boxes: tuple[Box, Box], data: bytes) -> None:
    one, other = boxes
    await one.publish()
    (one.shared / manifests.place("engine", KEY.digest)).write_bytes(data)
    assert await other.sharing.find(KEY) is None
    assert other.trouble


@pytest.mark.parametrize("content", [b"wrong!", b"longer than before", b"short"])
async def test_altered_file_is_refused(boxes: tuple[Box, Box], content: bytes) -> None:
    one, other = boxes
    await one.publish()
    (blob,) = (one.shared / "blobs").iterdir()
    blob.write_bytes(content)
    with pytest.raises(Refused, match="was altered"):
        await other.fetched()


async def test_half_uploaded_engine_is_refused(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    (blob,) = (one.shared / "blobs").iterdir()
    blob.unlink()
    with pytest.raises(Refused, match="missing in the shared store"):
        await other.fetched()


@pytest.mark.parametrize("name", ["../evil", "record.json", ".hidden", "a/b", ""])
def test_manifest_with_a_hostile_file_name_is_refused(name: str) -> None:
    record = record_of(KEY, RECIPE)
    files = {name: next(iter(record.files.values()))}
    found = manifests.Manifest(1, "engine", KEY.digest, files, msgspec.structs.replace(record, files=files), "0", 0.0)
    with pytest.raises(Refused, match="invalid name"):
        manifests.check(found, "engine", KEY.digest, KEY)


async def test_manifest_of_another_engine_is_refused(boxes: tuple[Box, Box]) -> None:
    """A store may answer with a well signed manifest of another engine."""
    one, other = boxes
    await one.publish()
    wanted = key_of(model(), RECIPE, cpu__model="other")
    place = one.shared / "engines"
    (place / f"{KEY.digest}.json").rename(place / f"{wanted.digest}.json")
    assert await other.sharing.find(wanted) is None
    assert "the manifest describes engine" in other.trouble


async def test_engine_that_was_wrong_here_is_not_tried_again_until_it_is_replaced(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    found = await other.sharing.find(KEY)
    assert found is not None
    other.sharing.refuse(found, WrongAnswers("cosine 0.5"))
    assert await other.sharing.find(KEY) is None
    await other.publish(b"better")
    one.trust(other)
    found = await one.sharing.find(KEY)
    assert found is not None
    assert found.signer == "yard"


async def test_altered_file_is_replaced_by_the_next_box_that_builds_the_same(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    (blob,) = (one.shared / "blobs").iterdir()
    blob.write_bytes(b"wrong!")
    found = await other.sharing.find(KEY)
    assert found is not None
    with pytest.raises(Refused, match="was altered") as error:
        await other.sharing.fetch(found, other.root)
    other.sharing.refuse(found, error.value)
    assert await other.sharing.find(KEY) is None
    assert "was altered" in other.trouble, "the alarm lasts while the engine is in the store"
    await other.publish()
    assert blob.read_bytes() == b"engine"
    assert not other.trouble


async def test_published_engine_of_a_trusted_box_is_not_replaced(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    await other.publish(b"another build")
    assert await other.fetched() == b"engine"


async def test_engine_of_a_box_that_is_not_trusted_is_not_replaced(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    before = (one.shared / manifests.place("engine", KEY.digest)).read_bytes()
    other.sharing.keys.untrust("dock")
    await other.publish(b"another build")
    assert (one.shared / manifests.place("engine", KEY.digest)).read_bytes() == before


async def test_engine_is_published_once_the_store_is_back(tmp_path: Path) -> None:
    box = Box(tmp_path, tmp_path / "shared")
    (tmp_path / "shared").rename(tmp_path / "away")
    await box.publish()
    assert "cannot be shared" in box.trouble
    (tmp_path / "away").rename(tmp_path / "shared")
    box.now = 31.0
    await asyncio.wait_for(_look(box), 5)
    assert list((tmp_path / "shared" / "engines").iterdir())
    assert not box.trouble


async def test_only_own_engines_are_published(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    for number, about in enumerate(
        ({"shared_by": "yard"}, {"adopted_from": "x"}, {"ahead": "sm_86"}, {"evicted": True})
    ):
        put(one.store, record_of(key_of(model(str(number)), RECIPE), RECIPE, **about))
    await asyncio.wait_for(_look(one), 5)
    assert not list(one.shared.rglob("*.json"))
    put(one.store, record_of(KEY, RECIPE))
    await asyncio.wait_for(_look(one), 5)
    assert await other.sharing.find(KEY) is not None


async def _look(box: Box) -> None:
    running = asyncio.create_task(box.sharing.run())
    await asyncio.sleep(0.3)
    running.cancel()


async def test_store_that_is_away_costs_one_attempt_and_an_alarm(tmp_path: Path) -> None:
    box = Box(tmp_path, tmp_path / "shared")
    box.configure(store="http://127.0.0.1:9/engines")
    assert await box.sharing.find(KEY) is None
    assert "cannot be shared" in box.trouble
    assert not box.sharing.is_on
    assert (await box.sharing.turn(KEY)).other == ""
    box.now = 31.0
    assert box.sharing.is_on
    box.configure(store="")
    assert not box.trouble


async def test_slow_store_is_given_up(tmp_path: Path) -> None:
    """The server sends its answer a byte at a time."""
    with _server(_Slow) as address:
        bucket = Bucket(f"{address}/engines", Patience(0.5, 1e6))
        with pytest.raises(DaemonUnavailable):
            await bucket.read("slow", 100)
        with pytest.raises(DaemonUnavailable):
            await bucket.save("slow", tmp_path / "file", 100)


async def test_web_server_that_only_reads_serves_engines(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(one.shared))

        def log_message(self, *_: object) -> None:
            pass

    with _server(Handler) as address:
        other.configure(store=address, publish=False)
        assert await other.fetched() == b"engine"
        assert (await other.sharing.turn(KEY)).lease is None
        assert not other.trouble
        other.configure(store=address, publish=True)
        assert (await other.sharing.turn(KEY)).lease is None
        assert "cannot be shared" in other.trouble
        assert await other.sharing.find(KEY) is not None, "it is still read"
        assert "cannot be shared" in other.trouble, "the alarm lasts"


class _Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 10:00:00 GMT")
        self.end_headers()
        for _ in range(100):
            try:
                self.wfile.write(b"x")
                self.wfile.flush()
            except OSError:
                return
            threading.Event().wait(0.1)

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


class _server:
    def __init__(self, handler: Any) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


# -- who builds -------------------------------------------------------------------------------------------------------


async def test_one_of_several_boxes_builds(tmp_path: Path) -> None:
    several = [Box(tmp_path, tmp_path / "shared", f"box{number}") for number in range(5)]
    turns = await asyncio.gather(*(box.sharing.turn(KEY) for box in several))
    assert sum(turn.lease is not None for turn in turns) == 1
    assert sum(bool(turn.other) for turn in turns) == 4
    for box in several:
        await box.sharing.built(KEY, None)
    assert not list((tmp_path / "shared" / "leases").iterdir())


async def test_lease_without_renewal_is_taken_over(tmp_path: Path) -> None:
    one, other = Box(tmp_path, tmp_path / "shared", "dock"), Box(tmp_path, tmp_path / "shared", "yard")
    assert (await one.sharing.turn(KEY)).lease is not None
    one.configure()  # it forgets its leases, as a box that lost power
    assert (await other.sharing.turn(KEY)).other == "dock"
    other.now = 9.0
    assert (await other.sharing.turn(KEY)).other == "dock"
    other.now = 10.0
    assert (await other.sharing.turn(KEY)).lease is not None


async def test_lease_that_is_taken_while_the_settings_change_is_not_renewed(tmp_path: Path) -> None:
    one, other = Box(tmp_path, tmp_path / "shared", "dock"), Box(tmp_path, tmp_path / "shared", "yard")
    one.sharing.timing = FAST._replace(pace=Pace(0.2, 0.01, 10.0))
    one.configure()
    taking = asyncio.create_task(one.sharing.turn(KEY))
    place = one.shared / "leases" / f"{KEY.digest}.json"
    await until(place.exists, "the lease is there")
    one.configure(store="")
    assert await taking == ("", None)
    data = place.read_bytes()
    await asyncio.sleep(0.1)
    assert place.read_bytes() == data
    assert (await other.sharing.turn(KEY)).other == "dock"


async def test_cancellation_together_with_an_answer_of_the_store_is_not_lost(tmp_path: Path) -> None:
    for turns in range(5):
        answer = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(Bucket(f"file://{tmp_path}")._within("name", answer, 60.0))
        await asyncio.sleep(0.001)
        answer.set_result(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        is_asked = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is is_asked


async def test_renewed_lease_is_waited_for_until_patience_ends(tmp_path: Path) -> None:
    one = Box(tmp_path, tmp_path / "shared", "dock")
    other = Box(tmp_path, tmp_path / "shared", "yard", wait_minutes=1)
    assert (await one.sharing.turn(KEY)).lease is not None
    for now in (0.0, 30.0, 59.0):
        other.now = now
        assert (await other.sharing.turn(KEY)).other == "dock"
        await asyncio.sleep(0.05)  # it is renewed
    other.now = 60.0
    turn = await other.sharing.turn(KEY)
    assert (turn.other, turn.lease) == ("", None)


async def test_box_that_does_not_publish_takes_no_lease_and_waits(tmp_path: Path) -> None:
    one, other = Box(tmp_path, tmp_path / "shared", "dock"), Box(tmp_path, tmp_path / "shared", "yard", publish=False)
    assert (await other.sharing.turn(KEY)) == ("", None)
    assert (await one.sharing.turn(KEY)).lease is not None
    assert (await other.sharing.turn(KEY)).other == "dock"


@pytest.mark.parametrize("data", [b"", b"null", b'{"holder": "\\u001b[31m", "nonce": "1"}'])
async def test_damaged_lease_is_void_after_a_while(tmp_path: Path, data: bytes) -> None:
    box = Box(tmp_path, tmp_path / "shared")
    place = box.shared / "leases" / f"{KEY.digest}.json"
    place.parent.mkdir()
    place.write_bytes(data)
    turn = await box.sharing.turn(KEY)
    assert turn.other
    assert turn.other.isprintable()
    box.now = 10.0
    assert (await box.sharing.turn(KEY)).lease is not None


async def test_lease_whose_store_ignores_create_only_belongs_to_the_last(tmp_path: Path) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    one = Leases(bucket, "one", Pace(0.2))
    taking = asyncio.create_task(one.take("k"))
    await asyncio.sleep(0.05)
    await bucket.write("leases/k.json", b'{"holder":"other","nonce":"1"}')
    assert await taking is None
    assert await one.holder("k") == "other"


# -- in the maker -----------------------------------------------------------------------------------------------------


class Workshop(ControlRoom):
    """A control room whose maker shares engines."""

    def __init__(self, root: Path, clock: Clock, sharing: Any) -> None:
        super().__init__(root, clock)
        builder: Any = self.builder
        self.maker = Maker(
            builder, self.store, self.models, self.maker._settings, self.events, self.tasks, self.log, sharing
        )
        self.builder.take_over = self._take_over  # type: ignore[attr-defined]
        self.taken: list[str] = []

    async def _take_over(self, task: Task, fetch: Any, on_progress: Any, reserve: Any) -> Any:
        self.taken.append(task.key.digest)
        out = self.store.root / "fetched"
        out.mkdir(exist_ok=True)
        await fetch(out)
        accepted = await self.builder._work("take over", task, on_progress)
        if not accepted:
            raise WrongAnswers("cosine 0.5")
        record = msgspec.structs.replace(self.builder._record(task, True), shared_by="dock")
        put(self.store, record)
        return record

    async def make(self, *outcomes: bool | BaseException) -> PlannedEngine:
        from edged.engines.reconcile import Make

        self.builder.outcomes.extend(outcomes)
        self.maker.start(self.planned, Make("m", self.engine.digest))
        await self.idle()
        return self.engine


class FakeSharing:
    timing = FAST

    def __init__(self) -> None:
        self.found: Found | None = None
        self.other = ""
        self.refused: list[str] = []
        self.over: list[str] = []

    async def find(self, key: EngineKey) -> Found | None:
        return self.found

    async def fetch(self, found: Found, out: Path) -> Any:
        return found.manifest.record

    async def turn(self, key: EngineKey) -> Any:
        from edged.fleet.sharing import Turn

        return Turn(self.other)

    async def built(self, key: EngineKey, timings: Path | None) -> None:
        self.over.append(key.digest)

    def refuse(self, found: Found, error: Exception) -> None:
        self.refused.append(str(error))
        self.found = None


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path, Clock(), FakeSharing())


def _found(engine: PlannedEngine) -> Found:
    record = record_of(engine.key, engine.recipe)
    manifest = manifests.Manifest(1, "engine", engine.digest, record.files, record, "0", 0.0)
    return Found(manifest, "dock", Bucket("file:///"))


def _sharing(shop: Workshop) -> FakeSharing:
    found: Any = shop.maker._sharing
    assert isinstance(found, FakeSharing)
    return found


async def test_maker_takes_an_engine_over_instead_of_building(shop: Workshop) -> None:
    _sharing(shop).found = _found(shop.engine)
    engine = await shop.make()
    assert (engine.state, engine.reason) == (EngineState.READY, "built by dock, verified here")
    assert [verb for verb, _ in shop.builder.did] == ["take over"]


async def test_maker_builds_after_an_engine_was_wrong(shop: Workshop) -> None:
    _sharing(shop).found = _found(shop.engine)
    engine = await shop.make(False)
    assert engine.state is EngineState.ABSENT
    assert _sharing(shop).refused == ["cosine 0.5"]
    assert shop.log.of(engine.digest).failures == 0
    assert (await shop.make()).state is EngineState.READY
    await until(lambda: _sharing(shop).over == [engine.digest], "the lease is given up")


async def test_maker_waits_for_the_box_that_builds(shop: Workshop) -> None:
    _sharing(shop).other = "yard"
    engine = await shop.make()
    assert (engine.state, engine.reason) == (EngineState.ABSENT, "yard builds it for all equal boxes")
    assert not shop.builder.did
    assert engine.retry_at > 0


async def test_maker_gives_up_the_lease_after_a_failed_build(shop: Workshop) -> None:
    from edged.errors import BuildFailed

    engine = await shop.make(BuildFailed("no"))
    assert engine.state is EngineState.FAILED
    await until(lambda: _sharing(shop).over == [engine.digest], "the lease is given up")


async def test_maker_builds_the_engine_that_a_command_asks_for_again(shop: Workshop) -> None:
    await shop.make()
    _sharing(shop).found = _found(shop.engine)
    await shop.make()
    assert [verb for verb, _ in shop.builder.did] == ["make", "make"]


# -- timing caches ----------------------------------------------------------------------------------------------------


async def test_timing_cache_is_published_and_fetched_once(boxes: tuple[Box, Box], tmp_path: Path) -> None:
    one, other = boxes
    cache = tmp_path / "mine" / "tensorrt-abc"
    cache.parent.mkdir()
    cache.write_bytes(b"timings")
    put(one.store, record_of(KEY, RECIPE))
    await one.sharing.built(KEY, cache)
    theirs = tmp_path / "theirs" / "tensorrt-abc"
    theirs.parent.mkdir()
    await other.sharing.fetch_timings(theirs)
    assert theirs.read_bytes() == b"timings"
    assert os.listdir(theirs.parent) == ["tensorrt-abc"]
    theirs.write_bytes(b"own")
    await other.sharing.fetch_timings(theirs)
    assert theirs.read_bytes() == b"own"


async def test_altered_timing_cache_is_not_used(boxes: tuple[Box, Box], tmp_path: Path) -> None:
    one, other = boxes
    cache = tmp_path / "tensorrt-abc"
    cache.write_bytes(b"timings")
    put(one.store, record_of(KEY, RECIPE))
    await one.sharing.built(KEY, cache)
    (one.shared / "blobs" / hashlib.sha256(b"timings").hexdigest()).write_bytes(b"hostile")
    theirs = tmp_path / "theirs" / "tensorrt-abc"
    theirs.parent.mkdir()
    await other.sharing.fetch_timings(theirs)
    assert not list(theirs.parent.iterdir())


# -- keys -------------------------------------------------------------------------------------------------------------


def test_keys_sign_and_are_private(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    assert keys.public() == ""
    with pytest.raises(Refused, match="edged fleet keygen"):
        keys.sign(b"data")
    public = keys.generate()
    assert keys.sign(b"data")[0] == public
    assert is_signed(*keys.sign(b"data"), b"data")
    assert not is_signed(*keys.sign(b"data"), b"date")
    assert stat.S_IMODE((tmp_path / "fleet" / "key").stat().st_mode) == 0o600
    with pytest.raises(AlreadyExists, match=public):
        keys.generate()
    (tmp_path / "fleet" / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        keys.public()


@pytest.mark.parametrize(("key", "signature"), [("", ""), ("zz", "00"), ("00" * 32, "00" * 64), ("ü" * 64, "x")])
def test_hostile_signature_is_no_signature(key: str, signature: str) -> None:
    assert not is_signed(key, signature, b"data")


def test_trust_is_by_name(tmp_path: Path) -> None:
    keys, key = Keys(tmp_path), "ab" * 32
    keys.trust("dock", key)
    keys.trust("dock", key)
    assert keys.name_of(key) == "dock"
    assert keys.name_of("cd" * 32) == ""
    with pytest.raises(AlreadyExists, match="edged fleet untrust dock"):
        keys.trust("dock", "cd" * 32)
    with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
        keys.trust("yard", "short")
    with pytest.raises(InvalidInput, match="not a name"):
        keys.trust("a b", key)
    assert keys.untrust("dock") == key
    with pytest.raises(NotFound):
        keys.untrust("dock")
    (tmp_path / "fleet" / "trusted.json").write_text("[")
    with pytest.raises(ConfigError, match="cannot be read"):
        keys.trusted()


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "engines", "ftp://host/x", "s3://", "file://host/x", "file:x", "s3://user:pass@bucket", "http://h:0/x"]
)
def test_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_address(url)
    assert "pass" not in str(error.value).replace("password", "")


# -- the shelf --------------------------------------------------------------------------------------------------------


async def test_shelf_lists_engines_and_says_which_are_not_trusted(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    (found,) = await Shelf(Bucket(f"file://{one.shared}"), other.sharing.keys).engines()
    assert (found.key, found.model, found.backend, found.signer) == (KEY.digest, "m", "openvino", "dock")
    other.sharing.keys.untrust("dock")
    (found,) = await Shelf(Bucket(f"file://{one.shared}"), other.sharing.keys).engines()
    assert "not trusted" in found.problem


async def test_shelf_prunes_old_engines_and_files_without_one(boxes: tuple[Box, Box]) -> None:
    one, _ = boxes
    await one.publish()
    stray = one.shared / "blobs" / ("0" * 64)
    stray.write_bytes(b"stray")
    shelf = Shelf(Bucket(f"file://{one.shared}"), one.sharing.keys)
    assert (await shelf.prune(3600)).files == 0  # it may belong to an engine that is being published
    os.utime(stray, (0, 0))
    done = await shelf.prune(3600, dry_run=True)
    assert (done.engines, done.files, done.bytes, stray.exists()) == ([], 1, 5, True)
    await shelf.prune(3600)
    assert not stray.exists()
    for path in one.shared.rglob("*"):
        os.utime(path, (0, 0))
    assert (await shelf.prune(3600)).engines == [KEY.digest]
    assert not [path for path in one.shared.rglob("*") if path.is_file()]


async def test_shelf_prunes_nothing_outside_of_the_store(boxes: tuple[Box, Box], tmp_path: Path) -> None:
    one, _ = boxes
    victim = tmp_path / "victim" / ("a" * 64)
    victim.parent.mkdir()
    victim.write_bytes(b"precious")
    os.utime(victim, (0, 0))
    (one.shared / "blobs").symlink_to(victim.parent)
    (one.shared / "note.txt").write_bytes(b"mine")
    with pytest.raises(Refused, match="has a link"):
        await Shelf(Bucket(f"file://{one.shared}"), one.sharing.keys).prune(0)
    assert victim.exists()
    assert (one.shared / "note.txt").exists()
    await one.publish()
    assert "has a link" in one.trouble
    assert sorted(path.name for path in victim.parent.iterdir()) == [victim.name]


async def test_folder_that_is_not_mounted_is_a_store_that_is_away(tmp_path: Path) -> None:
    box = Box(tmp_path, tmp_path / "shared")
    box.configure(store=f"file://{tmp_path}/missing")
    assert await box.sharing.find(KEY) is None
    assert "does not exist" in box.trouble
    assert not (tmp_path / "missing").exists()


async def test_store_that_is_changed_meanwhile_does_no_harm(boxes: tuple[Box, Box], tmp_path: Path) -> None:
    one, other = boxes
    await one.publish()
    found = await other.sharing.find(KEY)
    assert found is not None
    other.configure(store="")
    out = tmp_path / "out"
    out.mkdir()
    assert (await other.sharing.fetch(found, out)).shared_by == "dock"
    await other.sharing.built(KEY, None)


async def test_engine_that_had_no_memory_is_tried_again_and_not_replaced(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish()
    found = await other.sharing.find(KEY)
    assert found is not None
    other.sharing.refuse(found, OutOfMemory("no memory"))
    assert await other.sharing.find(KEY) is None
    await other.publish(b"another build")
    assert not other.trouble
    assert await Shelf(Bucket(f"file://{one.shared}"), other.sharing.keys).engines()
    other.now = 1801.0
    found = await other.sharing.find(KEY)
    assert found is not None
    assert found.signer == "dock"


def test_manifest_with_another_recipe_than_its_key_is_refused() -> None:
    record = record_of(KEY, Recipe("openvino", precision="fp16"))
    found = manifests.Manifest(1, "engine", KEY.digest, record.files, record, "0", 0.0)
    with pytest.raises(Refused, match="contradicts itself"):
        manifests.check(found, "engine", KEY.digest, KEY)


async def test_shelf_keeps_files_if_a_manifest_cannot_be_read(boxes: tuple[Box, Box]) -> None:
    one, _ = boxes
    await one.publish()
    for path in (one.shared / "blobs").iterdir():
        os.utime(path, (0, 0))
    (one.shared / manifests.place("engine", KEY.digest)).write_bytes(b"damaged")
    with pytest.raises(Refused, match="nothing was removed"):
        await Shelf(Bucket(f"file://{one.shared}"), one.sharing.keys).prune(3600)
    assert list((one.shared / "blobs").iterdir())


async def test_shelf_rolls_back_to_the_engine_before(boxes: tuple[Box, Box]) -> None:
    one, other = boxes
    await one.publish(b"first")
    found = await other.sharing.find(KEY)
    assert found is not None
    other.sharing.refuse(found, WrongAnswers("no"))
    await other.publish(b"second")
    one.trust(other)
    shelf = Shelf(Bucket(f"file://{one.shared}"), one.sharing.keys)
    assert await shelf.rollback(KEY.digest[:8])
    assert await one.fetched() == b"first"
    assert not await shelf.rollback(KEY.digest[:8])
    assert await one.sharing.find(KEY) is None
    with pytest.raises(NotFound):
        await shelf.rollback(KEY.digest[:8])
