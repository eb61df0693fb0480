"""Repair options, and the record of a repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import ConfigError
from edged.models import repair
from edged.models.repair import Done, Proof, Record, RepairOptions, Step


@pytest.mark.parametrize(
    ("needed", "words", "wanted"),
    [
        (False, [], []),
        (True, [], [Step.OPSET, Step.IR, Step.DIMS]),
        (False, ["simplify"], [Step.SIMPLIFY]),
    ],
)
def test_repair_options_want_needed_and_chosen_steps(needed: bool, words: list[str], wanted: list[Step]) -> None:
    options = RepairOptions.parse(needed, words)
    assert [step for step in Step if options.wants(step)] == wanted
    assert options.is_any == bool(wanted)
    assert [step for step in Step if options.insists(step)] == [Step(word) for word in words]


def test_parse_reads_its_own_words() -> None:
    options = RepairOptions.parse(True, ["simplify", "opset=17", "ir"])
    assert (options.opset, options.ir, options.chosen) == (17, 0, (Step.OPSET, Step.IR, Step.SIMPLIFY))
    assert RepairOptions.parse(True, options.words) == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["opzet"], "unknown repair step 'opzet'; choose from opset, ir, dims, sizes, simplify"),
        (["opset="], "give a version"),
        (["opset=x"], "give a version"),
        (["opset=-1"], "give a version"),
        (["opset=3"], "give a version from 7 on"),
        (["ir=99999"], "give a version"),
        (["dims=4"], "repair step dims takes no value"),
        (["opset=17", "opset=18"], "repair step opset is given twice"),
        ([""], "unknown repair step ''"),
    ],
)
def test_parse_invalid_word_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RepairOptions.parse(False, words)


def _record() -> Record:
    proof = Proof("onnxruntime 1.31.1", "gives the same answers to 7 probes as the original", 7, {"cosine": 1.0})
    done = Done("opset", "28", "26", proof, ("every operator is the same",))
    return Record(
        "a" * 64, "b" * 64, "/home/me/new.onnx", "2026-01-02T03:04:05+00:00", (done,), ("simplify: no",), "1.0"
    )


def test_read_returns_the_written_record(tmp_path: Path) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(repair.write(_record()))
    assert repair.read(place) == _record()
    assert '\n  "original": "bbb' in place.read_text()  # indented for people


def test_record_lines_describe_each_step() -> None:
    assert _record().lines() == (
        "from /home/me/new.onnx, digest bbbbbbbbbbbb, on 2026-01-02",
        "opset: 28 -> 26 (gives the same answers to 7 probes as the original)",
        "left out: simplify: no",
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"digest": 1}', b"[" * 100000, b"\xff\xfe"])
def test_read_other_content_returns_none(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(content)
    assert repair.read(place) is None


def test_read_record_of_another_format_or_size_returns_none(tmp_path: Path) -> None:
    place = tmp_path / repair.FILE
    place.write_bytes(repair.write(_record()).replace(b'"format": 1', b'"format": 2'))
    assert repair.read(place) is None
    place.write_bytes(repair.write(_record()) + b" " * (1 << 20))
    assert repair.read(place) is None
    assert repair.read(tmp_path) is None
    assert repair.read(tmp_path / "missing") is None
