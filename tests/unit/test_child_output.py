"""The output of children as log lines under their names, in any amount and form."""

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
def test_level_of_a_line_is_the_one_in_its_text(line: str, expected: int) -> None:
    assert level(line) == expected


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(each.name, each.levelname, each.getMessage()) for each in caplog.records]


def test_feed_joins_pieces_and_logs_under_the_childs_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forwarder = ChildLogForwarder("host null", backend="null")
    for piece in (b"[E] on", b"e\n\n  \n\x1b[1;31m[W] two\x1b[0m\n[I] th\xff", b"ree"):
        forwarder.feed(piece)
    forwarder.close()
    assert logged(caplog) == [
        ("edged.host.null", "ERROR", "[E] one"),
        ("edged.host.null", "WARNING", "[W] two"),
        ("edged.host.null", "INFO", "[I] th�ree"),
    ]
    assert {each.__dict__["child"] for each in caplog.records} == {"host null"}
    assert {each.__dict__["backend"] for each in caplog.records} == {"null"}


def test_feed_lines_that_differ_only_in_numbers_are_alike(caplog: pytest.LogCaptureFixture) -> None:
    forwarder = ChildLogForwarder("tracker")
    forwarder.feed(b"at 0x7ffe12 after 12.5 ms\nat 0x1a after 7.25 ms\nother\n")
    one, two, three = (each.__dict__["alike"] for each in caplog.records)
    assert one == two != three


def test_feed_with_a_highest_level_lowers_higher_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ChildLogForwarder("child build", logging.INFO).feed(b"[E] x\n[V] y\n")
    assert [level for _, level, _ in logged(caplog)] == ["INFO", "DEBUG"]


def test_feed_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    forwarder = ChildLogForwarder("host null")
    forwarder.feed(b"".join(b"line %d\n" % number for number in range(100_000)))
    forwarder.close()
    lines = logged(caplog)
    assert len(lines) < 200
    assert sum("line " in text for _, _, text in lines) + int(lines[-1][2].split()[1]) == 100_000


def test_feed_flood_costs_less_than_splitting_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    forwarder, piece = ChildLogForwarder("host null"), b"\n" * (1 << 20)
    forwarder.feed(piece)
    times = []
    for work in (lambda: forwarder.feed(piece), lambda: piece.split(b"\n")):
        began = time.process_time()
        for _ in range(5):
            work()
        times.append(time.process_time() - began)
    assert times[0] < times[1]


def test_feed_endless_line_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    forwarder = ChildLogForwarder("host null")
    for _ in range(1000):
        forwarder.feed(b"x" * 1000)
    assert all(len(text) <= 1000 for _, _, text in logged(caplog))


async def test_pipe_closed_logs_the_last_line(caplog: pytest.LogCaptureFixture) -> None:
    pipe = Pipe(ChildLogForwarder("host null"))
    program = "import sys; sys.stderr.write('hello\\nlast words')"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=pipe.child)
    pipe.started()
    await child.wait()
    pipe.close()
    pipe.close()
    assert pipe.child == -1
    assert [text for _, _, text in logged(caplog)] == ["hello", "last words"]


def test_pipe_child_that_prints_much_is_not_blocked() -> None:
    program = "import sys; [print('y' * 99, file=sys.stderr) for _ in range(20000)]"

    async def live() -> int:
        pipe = Pipe(ChildLogForwarder("host null"))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=pipe.child)
        pipe.started()
        status = await asyncio.wait_for(child.wait(), 60)
        pipe.close()
        return status

    assert asyncio.run(live()) == 0
