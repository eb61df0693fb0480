"""The display of `edged top`: tables that fit the width, and the picture of boxes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from edged.api_types import AlarmInfo, CameraInfo, DeviceLoad, EngineProgress, HostLoad, LoadInfo, ModelLoad, StatusInfo
from edged.cli.top.picture import Cell, Column, Order, cut, picture, plain, table
from edged.cli.top.watch import BoxState, rates

NOW = 1.7e9


def model(name: str, **more: Any) -> ModelLoad:
    known: dict[str, Any] = dict.fromkeys(("answered", "failed", "waiting"), 0)
    known |= {"reason": "", "degraded": (), "infer_ms": None, "baseline_ms": None}
    known |= {"state": "ready", "engine": "k" * 32, "backend": "openvino", "precision": "fp32", "device": "cpu"}
    return ModelLoad(**{**known, "name": name, **more})


def camera(name: str, **more: Any) -> CameraInfo:
    known: dict[str, Any] = {"camera": name, "model": "doors", "protocol": "grpc", "mode": "freshest", "tracked": False}
    known |= {"connections": 1, "received": 100, "answered": 80, "failed": 0, "dropped": 0, "skipped": {}}
    known |= {"fps_in": 25.0, "fps_answered": 20.0, "age_p50_ms": 31.4, "age_p99_ms": 88.0, "width": 640, "height": 480}
    known |= {"last_error": "", "last_error_unix_s": 0.0, "last_frame_unix_s": NOW}
    return CameraInfo(**{**known, **more})


def load(**more: Any) -> LoadInfo:
    status = StatusInfo(
        version="0.1.0",
        epoch=more.pop("epoch", "e1"),
        uptime_s=3725.0,
        models=2,
        serving=1,
        engines=3,
        engine_bytes=10,
        budget_bytes=0,
        free_bytes=10,
        paused="",
        building=more.pop("building", ()),
        alarms=more.pop("alarms", ()),
    )
    device = DeviceLoad(0.34, 8_000_000_000, 6_000_000_000, {"cpu-thermal": 53.2}, "MAXN", 108_000_000)
    known: dict[str, Any] = {
        "status": status,
        "mono_s": 100.0,
        "models": (
            model("doors", infer_ms=4.2, baseline_ms=3.9, answered=500, waiting=2),
            model("gates", state="refused", reason="it has a cycle", backend="", precision=""),
        ),
        "cameras": (camera("front", skipped={"newer": 15, "stale": 5}), camera("back", fps_in=5.0, age_p50_ms=300.0)),
        "hosts": (HostLoad("openvino", 4711, 83_000_000, 4_000_000_000, 2, 1), HostLoad("tensorrt", 0, 0, 0, 0, 3)),
        "device": device,
    }
    return LoadInfo(**{**known, **more})


def alarm(message: str = "inference takes long") -> AlarmInfo:
    return AlarmInfo("slow", message, "doors", "", NOW)


def making() -> EngineProgress:
    return EngineProgress(
        "b" * 32, "doors", "openvino", "bf16", "cpu", "building", "", "building", 0.25, 3.0, 12.0, False, False
    )


def drawn(boxes: list[BoxState], width: int, order: Order = Order.NAME, now: float = NOW) -> list[str]:
    return [line.plain for line in picture(boxes, width, order, now)]


# --- tables ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    Column("NAME", 100, is_cut=True),
    Column("SIZE", 90, is_right=True),
    Column("WHY", 30, is_cut=True),
    Column("LESS", 50),
)
ROWS = [
    [Cell("a name that is long enough"), Cell("12"), Cell("because of this and that"), Cell("xx")],
    [Cell("b"), Cell("3456"), Cell(""), Cell("y")],
]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            80,
            [
                "NAME                        SIZE  WHY                       LESS",
                "a name that is long enough    12  because of this and that  xx",
                "b                           3456                            y",
            ],
        ),
        (
            50,
            [
                "NAME                        SIZE  WHY         LESS",
                "a name that is long enough    12  because o…  xx",
                "b                           3456              y",
            ],
        ),
        (
            40,
            [
                "NAME              SIZE  WHY         LESS",
                "a name that is …    12  because o…  xx",
                "b                 3456              y",
            ],
        ),
        (28, ["NAME              SIZE  LESS", "a name that is …    12  xx", "b                 3456  y"]),
        (17, ["NAME         SIZE", "a name tha…    12", "b            3456"]),
        (9, ["NAME", "a name t…", "b"]),
        (1, ["…", "…", "b"]),
    ],
)
def test_table_drops_least_important_columns_then_cuts(width: int, expected: list[str]) -> None:
    assert [line.plain for line in table(COLUMNS, ROWS, width)] == expected


def test_table_leaves_out_empty_columns() -> None:
    heading, row = table(COLUMNS, [[Cell("a"), Cell("1"), Cell(""), Cell("x")]], 80)
    assert (heading.plain, row.plain) == ("NAME  SIZE  LESS", "a        1  x")


def test_table_any_names_fit_the_width() -> None:
    names = ("日本語のカメラの名前です", "a\u0301bc" * 9, "🎥" * 12, "x" * 400)
    names += ("\x1b[31mred\x1b[0m", "two\nlines", "tab\tbed", "")
    rows = [[Cell(name), Cell("1"), Cell(name), Cell(name)] for name in names]
    for width in range(1, 90):
        for line in table(COLUMNS, rows, width):
            assert cell_len(line.plain) <= width
            assert line.plain.isprintable()


def test_cut_counts_terminal_cells() -> None:
    assert (cut("abc", 3), cut("abcd", 3), cut("日本語", 4), cut("x", 0)) == ("abc", "ab…", "日 …", "")
    assert plain("\x1b]0;evil\x07") == "?]0;evil?"


# --- rates ----------------------------------------------------------------------------------------------------------


def test_rates_are_per_second_of_the_daemons_clock() -> None:
    before, after = (
        load(),
        load(mono_s=102.0, models=(model("doors", answered=600, failed=8), model("new", answered=9))),
    )
    assert rates(before, after) == {"doors": 54.0}
    assert rates(None, after) == {}


def test_rates_restarted_daemon_or_reloaded_model_has_none() -> None:
    before = load()
    assert rates(before, load(mono_s=102.0, epoch="e1")) == {"doors": 0.0, "gates": 0.0}
    assert rates(before, load(mono_s=102.0, epoch="e2")) == {}
    assert rates(before, load(mono_s=102.0, models=(model("doors", answered=3),))) == {}
    assert rates(before, load(mono_s=100.0)) == {}


# --- the picture ----------------------------------------------------------------------------------------------------


def test_picture_of_one_box_has_all_tables() -> None:
    seen = BoxState("dock1", load(building=(making(),), alarms=(alarm(),)), {"doors": 24.96}, NOW, NOW, 2)
    lines = drawn([seen], 120)
    clock = lines[2].split()[3].rstrip(":")
    assert lines == [
        "edged 0.1.0 at dock1, up 1 h 2 min, 1 of 2 models ready",
        "cpu 34%, memory 25% of 8.0 GB, daemon 108.0 MB, power mode MAXN, cpu-thermal 53 °C",
        f"alarm slow since {clock}: inference takes long",
        "making doors bbbbbbbbbbbb openvino/bf16: building 25%, 3.0 s of about 12 s",
        "",
        "MODEL  STATE    ENGINE         REQ/S   INFER    BEST  QUEUE  FAILED  WHY",
        "doors  ready    openvino fp32   25.0  4.2 ms  3.9 ms      2       0",
        "gates  refused                                            0       0  it has a cycle",
        "",
        "CAMERA  MODEL  FPS IN  ANSWERED  AGE P50    P99  SKIPPED              FAILED",
        "back    doors     5.0      20.0   300 ms  88 ms                            0",
        "front   doors    25.0      20.0    31 ms  88 ms  newer 15%, stale 5%       0",
        "",
        "HOST       PID   MEMORY      OF  ENGINES  LOST",
        "openvino  4711  83.0 MB  4.0 GB        2     1",
        "tensorrt  gone                               3",
    ]


def test_picture_of_several_boxes_shares_tables() -> None:
    boxes = [
        BoxState("dock1", load(building=(making(),)), {"doors": 25.0}, NOW, NOW, 2),
        BoxState("dock2", load(alarms=(alarm(),)), {}, NOW, NOW, 1),
        BoxState("dock3", tried=NOW, error="no route"),
    ]
    lines = drawn(boxes, 100)
    assert lines[0].split() == ["BOX", "ANSWER", "UP", "READY", "CPU", "MEMORY", "HEAT", "POWER", "VERSION", "ALARMS"]
    assert lines[1].split() == [
        "dock1",
        "here",
        *["1", "h", "2", "min", "1/2", "34%", "25%", "53", "°C", "MAXN", "0.1.0", "0"],
    ]
    assert lines[3].split() == ["dock3", "silent"]
    assert "dock3: no answer so far: no route" in lines
    assert "dock1: making doors bbbbbbbbbbbb openvino/bf16: building 25%, 3.0 s of about 12 s" in lines
    assert any(line.startswith("dock2: alarm slow since ") for line in lines)
    models = lines[lines.index("") + 1 :]
    assert models[0].split()[:2] == ["BOX", "MODEL"]
    assert [line.split()[:2] for line in models[1:5]] == [
        ["dock1", "doors"],
        ["dock1", "gates"],
        ["dock2", "doors"],
        ["dock2", "gates"],
    ]


def test_picture_silent_box_is_dim_with_the_time_of_its_last_answer() -> None:
    seen = BoxState("dock1", load(), {"doors": 25.0}, NOW - 75, NOW - 75, 5).failed("it went away", NOW - 1)
    lines = picture([seen], 120, Order.NAME, NOW)
    assert lines[1].plain.startswith("no answer since ")
    assert lines[1].plain.endswith(", 1 min 15 s ago: it went away")
    (doors,) = [line for line in lines if line.plain.startswith("doors")]
    assert "25.0" not in doors.plain  # an old rate
    assert {str(span.style) for span in doors.spans if span.start < span.end} <= {"dim", "none", ""}
    back = seen.answered(load(mono_s=101.0), NOW)
    assert (back.error, back.answers) == ("", 6)
    assert drawn([BoxState("dock1")], 80) == ["edged at dock1", "no answer yet"]


def test_picture_sorts_models_and_cameras() -> None:
    slow = model("a", infer_ms=5.0, baseline_ms=5.0), model("b", infer_ms=9.0, baseline_ms=3.0), model("c")
    seen = BoxState("x", load(models=slow), {"a": 1.0, "b": 2.0, "c": 30.0}, NOW, NOW, 2)

    def names(order: Order) -> tuple[list[str], list[str]]:
        lines = drawn([seen], 120, order)
        tables = [list(group) for empty, group in itertools.groupby(lines, lambda line: not line) if not empty]
        return [line.split()[0] for line in tables[1][1:]], [line.split()[0] for line in tables[2][1:]]

    assert names(Order.NAME) == (["a", "b", "c"], ["back", "front"])
    assert names(Order.BUSY) == (["c", "b", "a"], ["front", "back"])
    assert names(Order.LATE) == (["b", "a", "c"], ["back", "front"])
    assert [Order.NAME.next(), Order.BUSY.next(), Order.LATE.next()] == [Order.BUSY, Order.LATE, Order.NAME]


def test_picture_slow_inference_is_coloured() -> None:
    def style(infer_ms: float) -> str:
        lines = picture(
            [BoxState("x", load(models=(model("m", infer_ms=infer_ms, baseline_ms=10.0),)))], 120, Order.NAME, NOW
        )
        (line,) = [line for line in lines if line.plain.startswith("m ")]
        return _style_of(line, f"{infer_ms:g} ms")

    assert [style(each) for each in (10.0, 20.0, 50.0)] == ["", "yellow", "bold red"]


def _style_of(line: Text, part: str) -> str:
    at = line.plain.index(part)
    return next((str(span.style) for span in line.spans if span.start <= at < span.end and span.style), "")


@pytest.mark.parametrize("width", [1, 5, 12, 20, 33, 60, 79, 200])
def test_picture_hostile_names_are_printable_and_fit_the_width(width: int) -> None:
    hostile = "\x1b[2Jcam\x07\n"
    state = load(cameras=(camera(hostile),), alarms=(alarm(hostile + "x" * 300),))
    boxes = [BoxState(name, state, {}, NOW, NOW, 1) for name in ("a", "日本" * 30)]
    for shown in (boxes, boxes[:1]):
        assert all(cell_len(line) <= width and line.isprintable() for line in drawn(shown, width))
