"""The text that `edged top` shows: the states of boxes as lines, in tables that fit the width. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal
from rich.text import Text

from edged import formatting
from edged.api_types import DeviceLoad, HostLoad, LoadInfo, ModelLoad
from edged.cli.top.watch import BoxState

_GAP = 2
_LEAST = 10  # fewest cells of a column whose texts are cut


@dataclass(frozen=True)
class Column:
    """A column of a table. If the width does not suffice, the columns with the lowest value of `matters` are left out
    first. Texts of columns with `is_cut` can be cut."""

    title: str
    matters: int
    is_right: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Cell:
    text: str
    style: str = ""


Row = Sequence[Cell]


def plain(text: str) -> str:
    """Replace control characters. Names that come from clients may contain them."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int) -> str:
    """Cut a text to `width` cells, with an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…" * min(width, 1)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int, style: str = "") -> list[Text]:
    """Return a heading and a line for each row, none wider than `width`. Empty columns and columns that do not fit are
    left out."""
    texts = [[plain(cell.text) for cell in row] for row in rows]
    natural = [max([cell_len(column.title), *(cell_len(row[i]) for row in texts)]) for i, column in enumerate(columns)]
    shown = [i for i in range(len(columns)) if any(row[i] for row in texts)]
    while len(shown) > 1 and _needed(columns, natural, shown) > width:
        shown.remove(min(reversed(shown), key=lambda i: columns[i].matters))
    widths = _widths(columns, natural, shown, width)
    gap = Text(_GAP * " ")
    lines = [gap.join(Text(_fill(columns[i].title, widths[i], columns[i].is_right), "dim") for i in shown)]
    for row, words in zip(rows, texts, strict=True):
        lines.append(gap.join(Text(_fill(words[i], widths[i], columns[i].is_right), row[i].style) for i in shown))
    for line in lines:
        line.rstrip()
        line.truncate(width)
        line.no_wrap = True
        if style:
            line.stylize(style)
    return lines


def _needed(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int]) -> int:
    least = (min(natural[i], _LEAST) if columns[i].is_cut else natural[i] for i in shown)
    return sum(least) + _GAP * (len(shown) - 1)


def _widths(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each shown column. Columns that would be cut get spare cells, the most important first."""
    found = {i: min(natural[i], _LEAST) if columns[i].is_cut else natural[i] for i in shown}
    spare = width - _GAP * (len(shown) - 1) - sum(found.values())
    for i in sorted(shown, key=lambda i: -columns[i].matters):
        more = max(0, min(spare, natural[i] - found[i]))
        found[i] += more
        spare -= more
    if spare < 0:  # only one column is left, and it is too wide
        found = {i: max(1, found[i] + spare) for i in found}
    return found


def _fill(text: str, width: int, is_right: bool) -> str:
    text = cut(text, width)
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


_BAD, _DOUBTFUL, _GOOD, _OLD = "bold red", "yellow", "green", "dim"
_STATES = {"ready": _GOOD, "loading": _DOUBTFUL, "unproven": _DOUBTFUL}
_SLOW, _SLOWER = 1.5, 3.0  # multiples of the lowest inference time of the engine

_BOX = Column("BOX", 99, is_cut=True)
_MODELS = (
    Column("MODEL", 100, is_cut=True),
    Column("STATE", 95),
    Column("ENGINE", 60),
    Column("REQ/S", 90, is_right=True),
    Column("INFER", 80, is_right=True),
    Column("BEST", 50, is_right=True),
    Column("QUEUE", 70, is_right=True),
    Column("FAILED", 40, is_right=True),
    Column("WHY", 30, is_cut=True),
)
_CAMERAS = (
    Column("CAMERA", 100, is_cut=True),
    Column("MODEL", 60, is_cut=True),
    Column("FPS IN", 80, is_right=True),
    Column("ANSWERED", 90, is_right=True),
    Column("AGE P50", 85, is_right=True),
    Column("P99", 70, is_right=True),
    Column("SKIPPED", 50, is_cut=True),
    Column("FAILED", 40, is_right=True),
)
_HOSTS = (
    Column("HOST", 100, is_cut=True),
    Column("PID", 60, is_right=True),
    Column("MEMORY", 90, is_right=True),
    Column("OF", 40, is_right=True),
    Column("ENGINES", 50, is_right=True),
    Column("LOST", 80, is_right=True),
)
_BOXES = (
    Column("ANSWER", 98),
    Column("UP", 50, is_right=True),
    Column("READY", 95, is_right=True),
    Column("CPU", 80, is_right=True),
    Column("MEMORY", 70, is_right=True),
    Column("HEAT", 60, is_right=True),
    Column("POWER", 20),
    Column("VERSION", 30),
    Column("ALARMS", 90, is_right=True),
)


class Order(enum.Enum):
    """The order in which models and cameras are listed."""

    NAME = "name"
    BUSY = "busiest"
    LATE = "slowest"

    def next(self) -> Order:
        """Return the next order; after the last one, the first."""
        every = list(Order)
        return every[(every.index(self) + 1) % len(every)]


def picture(boxes: Sequence[BoxState], width: int, order: Order, now: float) -> list[Text]:
    """Return the lines that `edged top` shows, none wider than `width` terminal cells. `now` is in seconds since the
    epoch."""
    lines = _one(boxes[0], width, now) if len(boxes) == 1 else _several(boxes, width, now)
    known = [(box, box.load) for box in boxes if box.load is not None]
    sections = (
        _section(_MODELS, len(boxes), width, sorted(_models(known), key=lambda row: row[1][order])),
        _section(_CAMERAS, len(boxes), width, sorted(_cameras(known), key=lambda row: row[1][order])),
        _section(_HOSTS, len(boxes), width, list(_hosts(known))),
    )
    for section in sections:
        if section:
            lines += [Text(""), *section]
    return lines


_Ranks = dict[Order, tuple[float | str, ...]]
_Ranked = tuple[Row, _Ranks, BoxState]


def _section(columns: Sequence[Column], boxes: int, width: int, rows: Sequence[_Ranked]) -> list[Text]:
    """Return one table for the rows of all boxes; rows of a box that does not answer are dim."""
    if not rows:
        return []
    named = boxes > 1
    shown = [[*([Cell(box.name)] if named else []), *_paled(row, box)] for row, _, box in rows]
    return table((_BOX, *columns) if named else columns, shown, width)


def _paled(row: Row, box: BoxState) -> Row:
    return [Cell(cell.text, _OLD) for cell in row] if box.error else row


# --- boxes ----------------------------------------------------------------------------------------------------------


def _one(box: BoxState, width: int, now: float) -> list[Text]:
    """Return the lines about the only box: its name and version, its device, and a line for each alarm and each
    build."""
    load = box.load
    if load is None:
        return [_line(f"edged at {box.name}", "bold", width), *_silence(box, width, now)]
    status = load.status
    ready = f"{status.serving} of {status.models} models ready"
    title = f"edged {status.version} at {box.name}, up {formatting.span(status.uptime_s)}, {ready}"
    lines = [_line(title, "bold", width), *_silence(box, width, now), _line(_device(load.device), "", width)]
    lines += [_line(text, style, width) for text, style in _news(load)]
    return lines


def _several(boxes: Sequence[BoxState], width: int, now: float) -> list[Text]:
    lines = table((_BOX, *_BOXES), [_box(box) for box in boxes], width)
    for box in boxes:
        if box.error:
            lines.append(_line(f"{box.name}: {_silent(box, now)}", _BAD, width))
        elif box.load is not None:
            lines += [_line(f"{box.name}: {text}", style, width) for text, style in _news(box.load)]
    return lines


def _box(box: BoxState) -> Row:
    state = "silent" if box.error else "asked" if box.load is None else "here"
    answers = Cell(state, _BAD if box.error else "")
    if box.load is None:
        return [Cell(box.name), answers, *([Cell("")] * (len(_BOXES) - 1))]
    status, device = box.load.status, box.load.device
    is_whole = status.serving == status.models
    row = [
        Cell(formatting.span(status.uptime_s)),
        Cell(f"{status.serving}/{status.models}", "" if is_whole else _DOUBTFUL),
        Cell(f"{device.cpu_busy:.0%}"),
        Cell(_share(device)),
        Cell(_hottest(device)),
        Cell(device.power_mode),
        Cell(status.version),
        Cell(str(len(status.alarms)), _BAD) if status.alarms else Cell("0"),
    ]
    return [Cell(box.name), answers, *_paled(row, box)]


def _silence(box: BoxState, width: int, now: float) -> list[Text]:
    return [_line(_silent(box, now), _BAD, width)] if box.error or box.load is None else []


def _silent(box: BoxState, now: float) -> str:
    if not box.tried:
        return "no answer yet"
    since = (
        f"since {formatting.clock(box.last_answer)}, {formatting.span(now - box.last_answer)} ago"
        if box.last_answer
        else "so far"
    )
    return f"no answer {since}: {box.error}"


def _news(load: LoadInfo) -> Iterator[tuple[str, str]]:
    """Yield a line and its style for each alarm, for a pause of builds, and for each build."""
    for alarm in load.status.alarms:
        yield f"alarm {alarm.kind} since {formatting.clock(alarm.since_unix_s)}: {alarm.message}", _BAD
    if load.status.paused:
        yield load.status.paused, _DOUBTFUL
    for engine in load.status.building:
        yield f"making {formatting.line(engine)}", ""


def _device(device: DeviceLoad) -> str:
    zones = [f"{name} {celsius:.0f} °C" for name, celsius in device.temperatures.items()]
    power = f"power mode {device.power_mode}" if device.power_mode else ""
    memory = f"memory {_share(device)} of {decimal(device.memory_bytes)}" if device.memory_bytes else ""
    daemon = f"daemon {decimal(device.daemon_bytes)}"
    return ", ".join(filter(None, (f"cpu {device.cpu_busy:.0%}", memory, daemon, power, *zones)))


def _share(device: DeviceLoad) -> str:
    """Return the used share of the box's memory."""
    return f"{1 - device.memory_free_bytes / device.memory_bytes:.0%}" if device.memory_bytes else ""


def _hottest(device: DeviceLoad) -> str:
    return f"{max(device.temperatures.values()):.0f} °C" if device.temperatures else ""


# --- what boxes have ------------------------------------------------------------------------------------------------


def _models(known: Sequence[tuple[BoxState, LoadInfo]]) -> Iterator[_Ranked]:
    for box, load in known:
        for model in load.models:
            rate = box.rates.get(model.name)
            slower = _slower(model)
            row = (
                Cell(model.name),
                _state(model),
                Cell(" ".join(filter(None, (model.backend, model.precision)))),
                Cell("" if rate is None or box.error else f"{rate:.1f}"),
                Cell(_ms(model.infer_ms), _BAD if slower > _SLOWER else _DOUBTFUL if slower > _SLOW else ""),
                Cell(_ms(model.baseline_ms)),
                Cell(str(model.waiting), _DOUBTFUL if model.waiting else ""),
                Cell(str(model.failed), _DOUBTFUL if model.failed else ""),
                Cell(", ".join(model.degraded) if model.state == "ready" else model.reason),
            )
            yield row, _ranks((box.name, model.name), rate or 0.0, slower), box


def _state(model: ModelLoad) -> Cell:
    if model.state == "ready" and model.degraded:
        return Cell("degraded", _DOUBTFUL)
    return Cell(model.state, _STATES.get(model.state, _BAD))


def _slower(model: ModelLoad) -> float:
    """Return the inference time as a multiple of the lowest inference time of the engine; 0 if unknown."""
    return model.infer_ms / model.baseline_ms if model.infer_ms and model.baseline_ms else 0.0


def _cameras(known: Sequence[tuple[BoxState, LoadInfo]]) -> Iterator[_Ranked]:
    for box, load in known:
        for camera in load.cameras:
            row = (
                Cell(camera.camera or "-"),
                Cell(camera.model),
                Cell(f"{camera.fps_in:.1f}" if camera.connections else "gone", "" if camera.connections else _OLD),
                Cell(f"{camera.fps_answered:.1f}"),
                Cell(_whole_ms(camera.age_p50_ms)),
                Cell(_whole_ms(camera.age_p99_ms)),
                Cell(formatting.skipped(camera.skipped, camera.received)),
                Cell(str(camera.failed), _DOUBTFUL if camera.failed else ""),
            )
            name = (box.name, camera.camera, camera.model)
            yield row, _ranks(name, camera.fps_in, camera.age_p50_ms or 0.0), box


def _hosts(known: Sequence[tuple[BoxState, LoadInfo]]) -> Iterator[_Ranked]:
    for box, load in known:
        for host in load.hosts:
            yield _host(host), {}, box


def _host(host: HostLoad) -> Row:
    lost = Cell(str(host.losses), _DOUBTFUL if host.losses else "")
    if not host.pid:
        return [Cell(host.backend, _BAD), Cell("gone", _BAD), Cell(""), Cell(""), Cell(""), lost]
    share = host.resident_bytes / host.limit_bytes if host.limit_bytes else 0.0
    return [
        Cell(host.backend),
        Cell(str(host.pid)),
        Cell(decimal(host.resident_bytes), _BAD if share > 0.9 else ""),
        Cell(decimal(host.limit_bytes) if host.limit_bytes else ""),
        Cell(str(host.sessions)),
        lost,
    ]


def _ranks(name: tuple[str, ...], busy: float, late: float) -> _Ranks:
    """Return the sort key for each order. Rows with equal values are sorted by name."""
    return {Order.NAME: name, Order.BUSY: (-busy, *name), Order.LATE: (-late, *name)}


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:.0f} ms"


def _whole_ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.0f} ms"


def _line(text: str, style: str, width: int) -> Text:
    return Text(cut(plain(text), width), style, no_wrap=True)
