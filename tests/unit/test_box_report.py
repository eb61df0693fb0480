"""Box reports: the file format, and the rows that `make verified` derives from a report or the reason why not."""

from __future__ import annotations

import itertools
import re
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from edged.cli.report import write
from edged.device.fingerprint import Fingerprint
from edged.doctor import box_report
from edged.doctor.box_report import BoxReport
from edged.doctor.check import Check, Name, Result
from edged.doctor.redaction import Identity
from edged.doctor.self_check import Tried
from edged.errors import InvalidInput
from tools import verified

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 25)
ORIN = {
    "cpu.arch": "aarch64",
    "os.name": "ubuntu",
    "os.version": "22.04",
    "jetson.model": "NVIDIA Jetson Orin Nano Developer Kit",
    "jetson.l4t": "36.4.4",
    "nvidia.driver": "540.4.0",
    "cuda.runtime": "12.6.68",
    "tensorrt.version": "10.3.0.30",
    "runtime.tensorrt": "10.3.0",
    "gpu.0.name": "Orin",
    "gpu.0.pci": "0000:00:00.0",
}
NANO = "NVIDIA Jetson Orin Nano Developer Kit, compute capability 8.7"
ON_GPU = Tried("tensorrt", "10.3.0.30", "cuda:0", NANO, "fp32", True, 400.0, 40.0, 9.5, 10.0)
ON_CPU = Tried("onnxruntime", "1.23.2", "cpu", "ARMv8, 6 CPUs", "fp32", True, 60.0, 40.0, 1.5, 1.5)


def check(subject: str, result: Result = Result.OK, name: Name = Name.SELF_CHECK) -> Check:
    return Check(name, subject, result, "message", "" if result is Result.OK else "remedy")


def report(**changes: Any) -> BoxReport:
    plain = BoxReport(
        format=box_report.FORMAT,
        edged="0.1.0",
        python="3.10.12",
        day="2026-11-24",
        by="Ada L.",
        facts=ORIN,
        doctor=(check("", Result.WARNING, Name.CLOCK_SYNC), check("", Result.OK, Name.SWAP)),
        self_check=(check("reference"), check("onnxruntime on cpu"), check("tensorrt on cuda:0")),
        engines=(ON_CPU, ON_GPU),
        left_out=("models",),
        hardware_tests=("test_engines.py::test_a",),
    )
    return msgspec.structs.replace(plain, **changes)


def test_render_report_is_readable_again_and_shows_every_field() -> None:
    made = box_report.redacted(report(), Identity())
    text = box_report.render(made)
    assert box_report.read(text) == made
    assert box_report.read(text.replace("\n", "\r\n").replace("\r\n", "\n")) == made
    for shown in ("Orin Nano", "10.3.0.30", "TensorRT | cuda:0 | fp32 | 400 | 40 | 9.5 | 10", "clock_sync", "test_a"):
        assert shown in text
    assert "0000:00:00.0" not in text
    assert "make test-gpu" in text


def test_render_text_with_markdown_is_escaped() -> None:
    text = "a | b\n```json\n{}\n```\n# <img src=x> [link](x)"
    made = box_report.redacted(report(left_out=(text,), facts=ORIN | {"cpu.model": text}), Identity())
    shown = box_report.render(made)
    assert box_report.read(shown) == made
    assert "\n```json\n{}" not in shown
    assert not re.search(r"(?<!\\)[<[]", shown.partition("## For make verified")[0])


@pytest.mark.parametrize("text", ["", "{}", "# edged\n", '{"format": 1, "edged": "1"}', "```json\n[]\n```", "[" * 9999])
def test_read_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a complete report"):
        box_report.read(text)


@pytest.mark.parametrize("field", sorted(set(BoxReport.__struct_fields__)))
def test_read_report_without_a_field_is_refused(field: str) -> None:
    found = msgspec.to_builtins(report())
    del found[field]
    with pytest.raises(InvalidInput, match=field):
        box_report.read(msgspec.json.encode(found).decode())


@pytest.mark.parametrize(("field", "value"), [("format", 2), ("day", "yesterday"), ("by", "| me |"), ("engines", 1)])
def test_read_wrong_value_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        box_report.read(msgspec.json.encode(msgspec.to_builtins(report()) | {field: value}).decode())


@pytest.mark.parametrize(
    ("yes", "answer", "written"), [(False, "n\n", False), (False, "\n", False), (False, "y\n", True), (True, "", True)]
)
def test_write_asks_for_confirmation(tmp_path: Path, yes: bool, answer: str, written: bool) -> None:
    app, file = typer.Typer(), tmp_path / "report.md"
    app.command()(lambda: write("shown\n", file, yes=yes))
    done = CliRunner().invoke(app, [], input=answer)
    assert (done.exit_code, file.exists(), "Write this report to" in done.output) == (0, written, not yes)


def test_hardware_tests_need_a_gpu_and_a_checkout(tmp_path: Path) -> None:
    gpu = Fingerprint({"gpu.0.name": "Orin"})
    found = box_report.hardware_tests(gpu, ROOT / "tests" / "gpu")
    assert "test_engines.py::test_open_altered_engine_is_refused" in found
    assert box_report.hardware_tests(Fingerprint(), ROOT / "tests" / "gpu") == ()
    assert box_report.hardware_tests(gpu, tmp_path / "none") == ()


def test_rows_one_for_each_device_and_backend() -> None:
    on_cpu, on_gpu = verified.rows(report(), TODAY)
    assert str(on_gpu) == (
        "| 2026-11-24 | NVIDIA Jetson Orin Nano Developer Kit, compute capability 8.7 | edged 0.1.0,"
        " TensorRT 10.3.0.30, L4T 36.4.4, driver 540.4.0, CUDA 12.6.68, ubuntu 22.04 aarch64, Python 3.10.12"
        " | TensorRT fp32 on cuda:0 |"
        " edged report: answers as the reference, 9.5 times as fast | Ada L. |"
    )
    assert on_cpu.device == "NVIDIA Jetson Orin Nano Developer Kit: ARMv8, 6 CPUs"
    assert on_cpu.software == "edged 0.1.0, ONNX Runtime 1.23.2, ubuntu 22.04 aarch64, Python 3.10.12"
    assert verified.rows(report(by=""), TODAY)[0].by == "an owner"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"self_check": (check("reference"), check("openvino on cpu", Result.WRONG))}, "failed checks"),
        ({"doctor": (check("", Result.WRONG, Name.DRIVER),)}, "failed checks, such as driver"),
        ({"engines": (msgspec.structs.replace(ON_GPU, accepted=False),)}, "does not show that tensorrt"),
        ({"engines": (msgspec.structs.replace(ON_GPU, speed=None),)}, "lacks the name, version or speed"),
        ({"engines": (msgspec.structs.replace(ON_GPU, version=""),)}, "lacks the name, version or speed"),
        ({"engines": (msgspec.structs.replace(ON_GPU, device="cuda:1"),)}, "does not show that tensorrt on cuda:1"),
        ({"engines": ()}, "no runtime was compared"),
        ({"self_check": (check("tensorrt on cuda:0"), check("onnxruntime on cpu"))}, "no runtime was compared"),
        ({"facts": ORIN | {"cpu.arch": ""}}, "lacks the facts cpu.arch"),
        ({"day": "2026-11-26"}, "is in the future"),
        ({"day": "2026-02-31"}, "is not a day"),
    ],
)
def test_rows_are_refused_for_a_report_that_proves_nothing(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        verified.rows(report(**changes), TODAY)


def test_rows_have_only_plain_short_cells() -> None:
    evil = "x | y | <script>alert(1)</script> [l](http://x)\n|a|" + "z" * 500
    (row,) = verified.rows(report(engines=(msgspec.structs.replace(ON_CPU, version=evil, description=evil),)), TODAY)
    assert str(row).count("|") == 7
    assert not set(str(row)) & set("<>[]`*\n")
    assert max(map(len, row)) <= 240
    assert row.software.endswith("Python 3.10.12"), "a long version hides no other"


def test_verified_page_has_the_table_and_keeps_everything_else(tmp_path: Path) -> None:
    page, file = tmp_path / "VERIFIED.md", tmp_path / "report.md"
    text = (ROOT / "jetson" / "VERIFIED.md").read_text()
    page.write_text(text)
    file.write_text(box_report.render(report()))
    for _ in range(2):  # the second time adds no row
        assert verified.main([str(file)], page) == 0
        lines = page.read_text().splitlines()
        new = [line for line in lines if "Orin Nano Developer Kit" in line and line.startswith("| 2026-11-24")]
        assert len(new) == 2
        assert [line for line in lines if line not in new] == text.splitlines()
    assert lines[lines.index(new[0]) - 1] in (verified.HEAD.splitlines()[1], *text.splitlines())
    assert lines[lines.index(new[1]) + 1] == ""


def test_verified_refusal_leaves_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, file = tmp_path / "VERIFIED.md", tmp_path / "report.md"
    page.write_text(verified.HEAD)
    file.write_text(box_report.render(report(doctor=(check("", Result.WRONG, Name.DRIVER),))))
    assert verified.main([str(file)], page) == 1
    assert verified.main([str(tmp_path / "none.md")], page) == 1
    assert verified.main([], page) == 2
    assert page.read_text() == verified.HEAD
    shown = capsys.readouterr()
    assert (shown.out, "failed checks" in shown.err) == ("", True)


def test_rows_of_the_table_have_its_format() -> None:
    after = (ROOT / "jetson" / "VERIFIED.md").read_text().partition(verified.HEAD)[2]
    for line in itertools.takewhile(lambda line: line.startswith("|"), after.splitlines()):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(verified.Row._fields)
        assert all(cells)
        assert date.fromisoformat(cells[0]) >= date(2026, 11, 1)
