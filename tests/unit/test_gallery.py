"""Galleries: the nearest name, limits, files, the space of vectors, and names of answers."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.config import Config
from edged.daemon import locations
from edged.engines import gallery_report
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, NotFound, OutOfSpace
from edged.ipc import messages as m
from edged.models.entries import ModelEntry
from edged.serving.galleries import Galleries
from edged.serving.slot import Slot
from edged.serving.work import EngineRef, FrameWork
from edged.store import sealed
from edged.tensors import TensorSpec
from edged.vision import gallery as limits
from edged.vision.content import MOST_VALUES, Classes, Content, Embedding, pack
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.gallery import Gallery, check_name, space_of
from tests.fake_link import FakeLink

SIZE = 8


def recognition(**settings: str) -> Recognition:
    inputs = (TensorSpec("input", "FP32", ("n", 3, 112, 112)),)
    given = {"family": "arcface", **{key.replace("_", "."): value for key, value in settings.items()}}
    return recognise(inputs, (TensorSpec("683", "FP32", ("n", SIZE)),), {}, given)


def engine(digest: str = "digest", **settings: str) -> EngineRef:
    return EngineRef("key", "onnxruntime", digest, recognition(**settings))


SPACE = space_of("digest", recognition())
ANNA, BEN = (Embedding.of(np.eye(SIZE)[row]) for row in (0, 1))


def between(share: float) -> Embedding:
    """Return a vector whose similarity to ANNA is `share`, and to BEN 0."""
    return Embedding.of([share, 0, (1 - share**2) ** 0.5, *[0] * (SIZE - 3)])


def name_of(galleries: Galleries, embedding: Embedding) -> str:
    """Return the nearest name in the gallery of model `faces`."""
    found = galleries.of("faces", engine())
    assert found is not None
    return found.nearest(embedding)[0]


def filled(folder: Path, *names: str) -> Galleries:
    """Return galleries in which the n-th name has the n-th unit vector, for model `faces`."""
    made = Galleries(folder)
    for row, name in enumerate(names):
        asyncio.run(made.add("faces", SPACE, name, [Embedding.of(np.eye(SIZE)[row])]))
    return made


# -- nearest ----------------------------------------------------------------------------------------------------------


@given(
    arrays.arrays(np.float32, (7, SIZE), elements=st.floats(-1, 1, width=32)),
    arrays.arrays(np.float32, SIZE, elements=st.floats(-1, 1, width=32)),
)
def test_nearest_is_the_row_with_the_largest_cosine(rows: np.ndarray, vector: np.ndarray) -> None:
    pictures = [Embedding.of(row) for row in rows]
    made = Gallery(SPACE, SIZE, (), b"")
    for number, each in enumerate(pictures):
        made = made.with_pictures(f"name {number}", [each])
    asked = Embedding.of(vector)
    name, similarity = made.nearest(asked)
    if not vector.any():
        assert (name, similarity) == ("", 0)
        return
    expected = [each.cosine(asked) for each in pictures]
    assert similarity == pytest.approx(max(expected), abs=1e-6)
    assert expected[int(name.split()[1])] == pytest.approx(max(expected), abs=1e-6)


def test_nearest_of_several_pictures_the_best_counts() -> None:
    made = Gallery(SPACE, SIZE, (), b"").with_pictures("Anna", [between(0.1), ANNA]).with_pictures("Ben", [BEN])
    assert made.counts() == {"Anna": 2, "Ben": 1}
    assert made.nearest(between(0.9)) == ("Anna", pytest.approx(0.9))
    left = made.without("Anna")
    assert (left.names, left.nearest(BEN)) == (("Ben",), ("Ben", pytest.approx(1)))


@pytest.mark.parametrize("asked", [Embedding.of([0] * SIZE), Embedding.of([1, 2])])
def test_nearest_without_a_comparable_vector_has_no_name(asked: Embedding) -> None:
    assert Gallery(SPACE, SIZE, ("Anna",), ANNA.data).nearest(asked) == ("", 0)
    assert Gallery(SPACE, SIZE, (), b"").nearest(ANNA) == ("", 0)


def test_gallery_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Gallery(SPACE, SIZE, ("a",) * limits.MOST_PICTURES, ANNA.data * limits.MOST_PICTURES)
    with pytest.raises(InvalidInput, match="full"):
        full.with_pictures("b", [BEN])
    large = Embedding.of(np.ones(MOST_VALUES))
    with pytest.raises(InvalidInput, match="full"):
        Gallery(SPACE, MOST_VALUES, (), b"").with_pictures("b", [large] * (limits.MOST_BYTES // len(large.data) + 1))
    with pytest.raises(InvalidInput, match="values"):
        full.with_pictures("b", [large])


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\tb", "\x1b[31m", "a" * 65, "\ud800"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="invalid name"):
        check_name(name)


def test_checked_name_is_stripped() -> None:
    assert check_name("  Zoë Müller, 3 ") == "Zoë Müller, 3"


# -- the space ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digest", "settings", "same"),
    [
        ("digest", {}, True),
        ("digest", {"thresholds_score": "0.1"}, True),
        ("digest", {"names": "a,b"}, True),
        ("digest", {"preprocess_scale": "1"}, True),  # the family's own value
        ("other", {}, False),
        ("digest", {"preprocess_color": "bgr"}, False),
        ("digest", {"preprocess_mean": "0"}, False),
        ("digest", {"family": "osnet"}, False),
    ],
)
def test_space_of_other_model_or_preprocessing_differs(digest: str, settings: dict[str, str], same: bool) -> None:
    assert (space_of(digest, recognition(**settings)) == SPACE) is same


# -- files -------------------------------------------------------------------------------------------------------------


def test_galleries_are_kept_in_files_of_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "gallery"
    asyncio.run(filled(folder, "Anna").add("a/b:2", SPACE, "Ben", [BEN]))
    again = Galleries(folder)
    assert {model: each.counts() for model, each in again.all().items()} == {"a/b:2": {"Ben": 1}, "faces": {"Anna": 1}}
    assert name_of(again, ANNA) == "Anna"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600, 0o600]
    assert all(sealed.is_sealed(each.read_bytes()) for each in files)


def test_galleries_cannot_be_read_by_children(tmp_path: Path) -> None:
    assert tmp_path / "gallery" in locations.private(Config(state=str(tmp_path)))


async def test_galleries_removed_name_is_gone_from_memory_and_disk(tmp_path: Path) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna", "Ben")
    left = await made.remove("faces", "Anna")
    assert left is not None
    assert left.counts() == {"Ben": 1}
    assert name_of(made, ANNA) == "Ben"
    assert b"Anna" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert await made.remove("faces", "Ben") is None
    assert (made.all(), list(tmp_path.iterdir())) == ({}, [])


async def test_galleries_remove_missing_name_is_not_found(tmp_path: Path) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna")
    for model, name in (("faces", "Ben"), ("other", "Anna"), ("other", "")):
        with pytest.raises(NotFound):
            await made.remove(model, name)
    assert await made.remove("faces", "") is None


async def test_galleries_of_all_versions_of_a_model_are_forgotten(tmp_path: Path) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna")
    for model in ("faces:2", "faces-2"):
        await made.add(model, SPACE, "Ben", [BEN])
    await made.forget("faces")
    await made.forget("missing")
    assert list(Galleries(tmp_path).all()) == list(made.all()) == ["faces-2"]


async def test_galleries_of_another_version_start_again(tmp_path: Path) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna")
    newer = engine("newer")
    assert made.of("faces", newer) is None
    assert name_of(made, ANNA) == "Anna"
    added = await made.add("faces", space_of("newer", newer.recognition), "Ben", [Embedding.of([1, 0])])
    assert (added.counts(), added.size) == ({"Ben": 1}, 2)


async def test_galleries_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna")
    large = [Embedding.of(np.ones(MOST_VALUES))] * 96  # 24 MiB
    await made.add("large", SPACE, "a", large)
    await made.add("larger", SPACE, "a", large)
    with pytest.raises(InvalidInput, match="together"):
        await made.add("largest", SPACE, "a", large)
    await made.add("faces", SPACE, "Ben", [BEN])


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "not sealed", "wrong sizes"])
def test_galleries_damaged_file_is_kept_and_not_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, "Anna")
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    wrong = {
        "flipped bit": data.replace(b"Anna", b"Bnna"),
        "cut": data[: len(data) // 2],
        "not sealed": b"{}",
        "wrong sizes": sealed.seal(msgspec.defstruct("G", [("size", int, 3), ("space", str, "")])()),
    }
    path.write_bytes(wrong[damage])
    with caplog.at_level(logging.ERROR):
        again = Galleries(tmp_path)
    assert (again.all(), list(again.damaged())) == ({}, ["faces"])
    assert str(path) in caplog.text
    assert path.exists()
    (info,) = gallery_report.galleries(again, {})
    assert "cannot be used" in info.problem
    assert info.problem.endswith("edged gallery add faces NAME PICTURE")
    asyncio.run(again.add("faces", SPACE, "Anna", [ANNA]))
    assert (again.damaged(), list(Galleries(tmp_path).all())) == ({}, ["faces"])


async def test_galleries_of_a_cancelled_caller_agree_in_memory_and_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, writing, may_write = Galleries(tmp_path), threading.Event(), threading.Event()
    write = sealed.write

    def slowly(path: Path, content: msgspec.Struct, mode: int) -> None:
        writing.set()
        may_write.wait(10)
        write(path, content, mode)

    monkeypatch.setattr(sealed, "write", slowly)
    adding = asyncio.ensure_future(made.add("faces", SPACE, "Anna", [ANNA]))
    await asyncio.to_thread(writing.wait, 10)
    adding.cancel()
    other = asyncio.ensure_future(made.add("faces", SPACE, "Ben", [BEN]))
    await asyncio.sleep(0)
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await other
    assert made.all()["faces"].counts() == Galleries(tmp_path).all()["faces"].counts() == {"Anna": 1, "Ben": 1}


async def test_galleries_on_a_full_disk_keep_what_they_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await asyncio.to_thread(filled, tmp_path, "Anna")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sealed, "write", full)
    with pytest.raises(OutOfSpace):
        await made.add("faces", SPACE, "Ben", [BEN])
    assert made.all()["faces"].counts() == {"Anna": 1}


def test_galleries_vectors_are_readable_json(tmp_path: Path) -> None:
    filled(tmp_path, "Anna")
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["names"] == ["Anna"]


# -- reports -----------------------------------------------------------------------------------------------------------


def test_report_says_why_a_gallery_is_not_used(tmp_path: Path) -> None:
    kept = filled(tmp_path, "Anna")
    (info,) = gallery_report.galleries(kept, {})
    assert (info.names, info.bytes) == ({"Anna": 1}, SIZE * 4)
    assert "no model" in info.problem
    loading = PlannedModel(ModelEntry("faces", "1", "", {}, ""), Slot("faces"))
    (info,) = gallery_report.galleries(kept, {"faces": loading})
    assert (info.problem, gallery_report.notes(kept, loading)) == ("", ())


# -- answers -----------------------------------------------------------------------------------------------------------


async def answer(slot: Slot, content: Content, thresholds: Thresholds | None = None, **engine_facts: object) -> Content:
    """Return the content of a frame that the host answered with `content`."""
    link, work = FakeLink(), FrameWork(b"frame", thresholds=thresholds)
    facts = {"recognition": recognition(), "model": "digest", **engine_facts}
    slot.install(link.session(**facts))
    slot.push(work)
    number = min(link.jobs)
    _, future = link.jobs.pop(number)
    future.set_result(m.Detected(number, (m.Seen(4, 3, m.Times(), content=pack(content)),)))
    found = (await work.future).content
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("share", "least", "label"),
    [(1, None, "Anna"), (0.51, None, "Anna"), (0.49, None, ""), (0.49, 0.4, "Anna"), (0.9, 0.95, "")],
)
async def test_answer_has_the_nearest_name_if_it_is_near_enough(
    tmp_path: Path, share: float, least: float | None, label: str
) -> None:
    kept = await asyncio.to_thread(filled, tmp_path, "Anna", "Ben")
    thresholds = None if least is None else Thresholds(score=least)
    found = await answer(Slot("faces", kept), between(share), thresholds)
    assert isinstance(found, Embedding)
    assert (found.label, found.similarity) == (label, pytest.approx(share, abs=1e-6))


async def test_answer_from_a_large_gallery_has_its_name(tmp_path: Path) -> None:
    rows = [Embedding.of(np.arange(MOST_VALUES) == number) for number in range(20)]  # 5 MiB
    kept = await asyncio.to_thread(Galleries, tmp_path)
    for name, of_name in (("Anna", rows[:10]), ("Ben", rows[10:])):
        await kept.add("faces", SPACE, name, of_name)
    found = await answer(Slot("faces", kept), rows[15])
    assert isinstance(found, Embedding)
    assert (found.label, found.similarity) == ("Ben", 1)


async def test_answer_of_another_engine_of_the_same_model_has_its_name(tmp_path: Path) -> None:
    kept = await asyncio.to_thread(filled, tmp_path, "Anna")
    slot = Slot("faces", kept)
    for key in ("first", "second"):
        found = await answer(slot, ANNA, key=key, backend=key)
        assert isinstance(found, Embedding)
        assert found.label == "Anna"


@pytest.mark.parametrize(
    ("model", "digest"), [("faces", "newer"), ("other", "digest")], ids=["another version", "another model"]
)
async def test_answer_without_a_gallery_of_its_model_has_no_name(tmp_path: Path, model: str, digest: str) -> None:
    kept = await asyncio.to_thread(filled, tmp_path, "Anna")
    assert await answer(Slot(model, kept), ANNA, model=digest) == Embedding(ANNA.data)


async def test_answer_never_has_a_name_that_the_host_made_up(tmp_path: Path) -> None:
    forged = Embedding(ANNA.data, "Ben", 0.99)
    assert await answer(Slot("faces"), forged) == Embedding(ANNA.data)
    kept = await asyncio.to_thread(filled, tmp_path, "Anna")
    found = await answer(Slot("faces", kept), forged)
    assert isinstance(found, Embedding)
    assert (found.label, found.similarity) == ("Anna", pytest.approx(1))


async def test_answer_with_another_content_is_unchanged(tmp_path: Path) -> None:
    kept = await asyncio.to_thread(filled, tmp_path, "Anna")
    assert await answer(Slot("faces", kept), Classes((1,), (0.5,))) == Classes((1,), (0.5,))
