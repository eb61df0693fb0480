"""Which repairs are asked for, and the record of what was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import ConfigError
from edged.models import repair
from edged.models.repair import Done, Proof, Record, Step, Wish


def test_nothing_is_forced() -> None:
    wish = Wish.parse(False, [])
    assert not wish.is_any
    assert not any(wish.wants(step) for step in Step)


def test_what_is_needed_does_not_simplify_or_free_sizes() -> None:
    wish = Wish.parse(True, [])
    assert [step for step in Step if wish.wants(step)] == [Step.OPSET, Step.IR, Step.DIMS]
    assert not any(wish.insists(step) for step in Step)


def test_a_step_alone_is_the_only_one() -> None:
    wish = Wish.parse(False, ["simplify"])
    assert [step for step in Step if wish.wants(step)] == [Step.SIMPLIFY]
    assert wish.insists(Step.SIMPLIFY)


def test_words_are_read_as_they_are_written() -> None:
    wish = Wish.parse(True, ["simplify", "opset=17", "ir"])
    assert (wish.opset, wish.ir, wish.chosen) == (17, 0, (Step.OPSET, Step.IR, Step.SIMPLIFY))
    assert Wish.parse(True, wish.words) == wish


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["opzet"], "unknown repair 'opzet'; choose from opset, ir, dims, sizes, simplify"),
        (["opset="], "give a version"),
        (["opset=x"], "give a version"),
        (["opset=-1"], "give a version"),
        (["opset=3"], "give a version from 7 on"),
        (["ir=99999"], "give a version"),
        (["dims=4"], "repair dims takes no value"),
        (["opset=17", "opset=18"], "repair opset is given twice"),
        ([""], "unknown repair ''"),
    ],
)
def test_a_word_that_is_no_repair_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Wish.parse(False, words)


def _record() -> Record:
    proof = Proof("onnxruntime 1.31.1", "answers 7 questions as the original does", 7, {"cosine": 1.0})
    done = Done("opset", "28", "26", proof, ("every operator is the same",))
    return Record(
        "a" * 64, "b" * 64, "/home/me/new.onnx", "2026-01-02T03:04:05+00:00", (done,), ("simplify: no",), "1.0"
    )


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(repair.write(_record()))
    assert repair.read(place) == _record()
    assert '\n  "original": "bbb' in place.read_text()  # a person reads it


def test_a_record_is_told_in_lines() -> None:
    assert _record().lines() == (
        "from /home/me/new.onnx, digest bbbbbbbbbbbb, on 2026-01-02",
        "opset: 28 -> 26 (answers 7 questions as the original does)",
        "left out: simplify: no",
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"digest": 1}', b"[" * 100000, b"\xff\xfe"])
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(content)
    assert repair.read(place) is None


def test_a_record_of_another_format_or_size_is_none(tmp_path: Path) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(repair.write(_record()).replace(b'"format": 1', b'"format": 2'))
    assert repair.read(place) is None
    place.write_bytes(repair.write(_record()) + b" " * (1 << 20))
    assert repair.read(place) is None
    assert repair.read(tmp_path) is None
    assert repair.read(tmp_path / "missing") is None
