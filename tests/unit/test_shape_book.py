"""The book of a model's shapes: after restarts, with damaged files, and without a usable disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.engines.shape_book import Page, ShapeBook, configured_range
from edged.models.model import Model
from edged.serving.extents import Kind, Seen
from edged.store import sealed
from edged.tensors import TensorSpec
from tests.unit.control_room import entry, inspection

SIGNATURE = Signature((TensorSpec("x", "FP32", ("n", "w")),), (TensorSpec("y", "FP32", ("n",)),))
WIDE = Profile.parse("x=1x4:1x8:4x64")
SEEN = Seen(3, (Kind({"x": (1, 8)}, 2), Kind({"x": (4, 60)}, 1)), {"x": (1, 8)}, {"x": (4, 60)})
PAGE = Page(seen=SEEN, learnt=str(WIDE), widened=(1.0, 2.0))


def model(content: str = "content", **settings: str) -> Model:
    output = {"shapes.policy": "learn", **{name.replace("__", "."): text for name, text in settings.items()}}
    read = msgspec.structs.replace(inspection(content), signature=SIGNATURE)
    return Model.of(msgspec.structs.replace(entry(), settings=output), read)


def kept(root: Path, page: Page = PAGE, of: Model | None = None) -> ShapeBook:
    book = ShapeBook(root)
    book.change(of or model(), page)
    book.write(of or model())
    return ShapeBook(root)


def test_book_after_a_restart_has_its_page(tmp_path: Path) -> None:
    book = kept(tmp_path)
    assert book.page(model()) == PAGE
    assert book.applied(model()).learnt == WIDE


def test_book_that_is_only_read_writes_nothing(tmp_path: Path) -> None:
    book = ShapeBook(tmp_path / "not")
    assert book.page(model()) == Page()
    assert book.applied(model()) == model()
    assert not (tmp_path / "not").exists()


def test_book_of_changed_content_is_empty(tmp_path: Path) -> None:
    assert kept(tmp_path).page(model("another")) == Page()


def test_book_with_another_policy_applies_nothing(tmp_path: Path) -> None:
    book = kept(tmp_path)
    for policy in ("any", "refuse"):
        assert book.applied(model(shapes__policy=policy, profile__x="1x8")).learnt == Profile()


def test_book_ignores_ranges_learnt_with_other_settings(tmp_path: Path) -> None:
    assert kept(tmp_path).applied(model(profile__x="1x8")).learnt == Profile()
    set_ = model(profile__x="1x8")
    assert configured_range(set_) == "x=1x8:1x8:1x8"
    book = kept(tmp_path, msgspec.structs.replace(PAGE, configured=configured_range(set_)), set_)
    assert book.applied(set_).learnt == WIDE


def test_book_target_precedes_the_proved_range_and_is_not_stored(tmp_path: Path) -> None:
    book, aim = kept(tmp_path), Profile.parse("x=1x1:1x8:8x80")
    book.aim(model(), aim)
    assert book.applied(model()).learnt == aim
    book.write(model())
    assert ShapeBook(tmp_path).applied(model()).learnt == WIDE
    book.unaim(model())
    assert book.applied(book.applied(model())).learnt == WIDE


def plain() -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(PAGE))
    return decoded


def damaged() -> list[bytes]:
    def altered(alter: Callable[[dict[str, Any]], object]) -> bytes:
        page = plain()
        alter(page)
        return sealed.seal(msgspec.convert(page, Page))

    whole = sealed.seal(PAGE)
    return [
        b"",
        whole[:-1],
        msgspec.json.encode(PAGE),
        b"\xff" + whole,
        b"[" * 100_000,
        b" " * (2 << 20) + whole,
        altered(lambda page: page.update(format=99)),
        altered(lambda page: page.update(learnt="x=1x4:1x8")),
        altered(lambda page: page.update(learnt="z=1x4:1x8:4x64")),
        altered(lambda page: page.update(learnt="x=1:1:1")),
        altered(lambda page: page.update(learnt="x=2x2:1x8:4x64")),
        altered(lambda page: page["seen"].update(requests=-1)),
        altered(lambda page: page["seen"].update(largest={"x": [1, 2, 3]})),
        altered(lambda page: page["seen"].update(smallest={"x": [-1, 2]})),
        altered(lambda page: page["seen"].update(smallest={"other": [1, 2]})),
        altered(lambda page: page["seen"].update(kinds=[{"shapes": {"x": [1, 2]}, "count": 0}])),
        altered(lambda page: page["seen"].update(kinds=[{"shapes": {"x": [1, n]}, "count": 1} for n in range(65)])),
    ]


@pytest.mark.parametrize("content", damaged(), ids=lambda content: str(content[:8]))
def test_book_damaged_page_is_counted_and_empty(tmp_path: Path, content: bytes) -> None:
    book, before = kept(tmp_path), sealed.DAMAGED["shapes"]
    (place,) = (tmp_path / "shapes").iterdir()
    place.write_bytes(content)
    assert book.page(model()) == Page()
    assert book.applied(model()).learnt == Profile()
    assert sealed.DAMAGED["shapes"] == before + 1
    assert not place.exists()
    book.change(model(), PAGE)
    book.write(model())
    assert ShapeBook(tmp_path).page(model()) == PAGE


def test_book_on_an_unwritable_disk_is_empty_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text("in the way")
    book = kept(tmp_path)
    assert book.page(model()) == Page()


def test_book_removes_pages_written_longest_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.engines.shape_book._KEPT", 2)
    for content in ("a", "b", "c", "d"):
        kept(tmp_path, of=model(content))
    assert len(list((tmp_path / "shapes").glob("*.json"))) <= 3
    assert ShapeBook(tmp_path).page(model("d")) == PAGE
