"""What children print arrives as log lines of their name, however much and in whatever form it is."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import pytest

from edged.logs.child_output import ChildLogForwarder, Pipe, level


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-01-01 10:00:00.1 [E:onnxruntime:, sequential_executor.cc:514 ExecuteKernel] Non-zero", logging.ERROR),
        ("2026-01-01 10:00:00.1 [W:onnxruntime:Default, device.cc:1] no device", logging.WARNING),
        ("2026-01-01 10:00:00.1 [I:onnxruntime:, x.cc:1] hello", logging.INFO),
        ("[ ERROR ] cannot load", logging.ERROR),
        ("[WARNING] old", logging.WARNING),
        ("[TRT] [E] no", logging.ERROR),
        ("[02/03/2026-10:00:00] [F] [TRT] gone", logging.ERROR),
        ("E0000 00:00:1 1 x.cc:1] no", logging.ERROR),
        ("I1121 10:00:00.1 1 x.cc:1] fine", logging.INFO),
        ("/x/y.py:12: UserWarning: old", logging.WARNING),
        ("terminate called after throwing an instance of 'std::bad_alloc'", logging.WARNING),
        ("Error", logging.WARNING),
    ],
)
def test_a_line_is_as_bad_as_it_says(line: str, expected: int) -> None:
    assert level(line) == expected


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(each.name, each.levelname, each.getMessage()) for each in caplog.records]


def test_lines_are_put_together_from_pieces_and_told_by_the_childs_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    heard = ChildLogForwarder("host null", backend="null")
    for piece in (b"[E] on", b"e\n\n  \n\x1b[1;31m[W] two\x1b[0m\n[I] th\xff", b"ree"):
        heard.feed(piece)
    heard.close()
    assert _said(caplog) == [
        ("edged.host.null", "ERROR", "[E] one"),
        ("edged.host.null", "WARNING", "[W] two"),
        ("edged.host.null", "INFO", "[I] th�ree"),
    ]
    assert {each.__dict__["child"] for each in caplog.records} == {"host null"}
    assert {each.__dict__["backend"] for each in caplog.records} == {"null"}


def test_lines_that_differ_in_numbers_are_alike(caplog: pytest.LogCaptureFixture) -> None:
    heard = ChildLogForwarder("tracker")
    heard.feed(b"at 0x7ffe12 after 12.5 ms\nat 0x1a after 7.25 ms\nother\n")
    one, two, three = (each.__dict__["alike"] for each in caplog.records)
    assert one == two != three


def test_a_child_that_is_not_to_alarm_anybody_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ChildLogForwarder("child build", logging.INFO).feed(b"[E] x\n[V] y\n")
    assert [level for _, level, _ in _said(caplog)] == ["INFO", "DEBUG"]


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    heard = ChildLogForwarder("host null")
    heard.feed(b"".join(b"line %d\n" % number for number in range(100_000)))
    heard.close()
    told = _said(caplog)
    assert len(told) < 200
    assert sum("line " in text for _, _, text in told) + int(told[-1][2].split()[1]) == 100_000


def test_overheard_flood_costs_little_more_than_counting_it(caplog: pytest.LogCaptureFixture) -> None:
    heard, piece = ChildLogForwarder("host null"), b"\n" * (1 << 20)
    heard.feed(piece)
    times = []
    for work in (lambda: heard.feed(piece), lambda: piece.split(b"\n")):
        began = time.process_time()
        for _ in range(5):
            work()
        times.append(time.process_time() - began)
    assert times[0] < times[1]


def test_a_line_without_an_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    heard = ChildLogForwarder("host null")
    for _ in range(1000):
        heard.feed(b"x" * 1000)
    assert len(heard._begun) <= 5000
    assert all(len(text) <= 1000 for _, _, text in _said(caplog))


def test_the_last_words_of_a_child_are_heard_and_nothing_is_left_open(caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        pipe = Pipe(ChildLogForwarder("host null"))
        program = "import sys; sys.stderr.write('hello\\nlast words')"
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=pipe.child)
        pipe.started()
        await child.wait()
        pipe.close()
        assert pipe._reader == pipe.child == -1
        pipe.close()

    asyncio.run(live())
    assert [text for _, _, text in _said(caplog)] == ["hello", "last words"]


def test_a_child_whose_parent_does_not_look_is_not_kept_waiting() -> None:
    """It is read while the loop waits for something else."""

    program = "import sys; [print('y' * 99, file=sys.stderr) for _ in range(20000)]"

    async def live() -> int:
        pipe = Pipe(ChildLogForwarder("host null"))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=pipe.child)
        pipe.started()
        status = await asyncio.wait_for(child.wait(), 60)
        pipe.close()
        return status

    assert asyncio.run(live()) == 0
