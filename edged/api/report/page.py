"""The page about one engine: verdict, answers on frames of cameras, speed, composition, worst frames.

The page contains everything that it shows. Labels, names and messages come from models and cameras, so every text is
escaped, and a policy in the page forbids scripts and other files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import msgspec

from edged import formatting
from edged.api.report import charts
from edged.api_types import EngineInfo, Verdict
from edged.store.judgement import Judgement, Tally, WorstFrame
from edged.store.record import Blocks
from edged.verification.verify import FLOORS

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_LINES = 60  # limit of lines in each list of layers or notes
_STYLE = """
:root { color-scheme: light dark; --back: #f4f6f7; --card: #fff; --text: #14212b; --dim: #50606c; --edge: #cfd8dd;
  --one: #0b6e69; --two: #9a3d00; --good: #0a6b3d; --bad: #a8201a; }
@media (prefers-color-scheme: dark) { :root { --back: #10171c; --card: #19232a; --text: #e8eef1; --dim: #a5b4be;
  --edge: #33424c; --one: #5cc8c1; --two: #f0a868; --good: #7bd6a2; --bad: #ff9d95; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; background: var(--back); color: var(--text);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .4rem; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); font-size: .9rem; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--edge); border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; }
tr + tr { border-top: 1px solid var(--edge); } th[scope=row] { min-width: 7rem; }
.number { text-align: right; overflow-wrap: normal; }
svg { width: 100%; max-width: 34rem; height: auto; background: var(--card); border: 1px solid var(--edge);
  border-radius: .4rem; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
.grid { stroke: var(--edge); } .recall, .precision { fill: none; stroke-width: 2.2; } .recall { stroke: var(--one); }
.precision { stroke: var(--two); stroke-dasharray: 6 3; } .whisker { stroke: var(--dim); }
.box { fill: var(--back); stroke: var(--one); stroke-width: 1.5; } .median { stroke: var(--two); stroke-width: 2.5; }
.dot { fill: var(--dim); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: .6rem; }
figure { margin: 0; } figcaption { font-size: .9rem; } img { width: 100%; max-width: 30rem; border-radius: .3rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
"""


class Report(msgspec.Struct, frozen=True):
    """The facts about an engine. `bounds` is a mapping from the figures in the engine's verdict to their limits.

    `no_pictures` says why the worst frames have no pictures; empty if they have pictures.
    """

    engine: EngineInfo
    models: tuple[str, ...]
    bounds: dict[str, float] = {}
    judgement: Judgement | None = None
    blocks: Blocks = Blocks()
    no_pictures: str = ""


def page(report: Report, pictures: Mapping[str, tuple[bytes, bytes]]) -> str:
    """Return the page. `pictures` is a mapping from the names of worst frames to two JPEGs of the frame. The first JPEG
    shows the reference's detections, and the second the engine's. If neither found any detections, the first JPEG shows
    the frame alone, and the second is empty."""
    engine = report.engine
    title = f"Engine {engine.key[:12]} of {', '.join(report.models)}"
    parts = [f"<h1>{escape(title)}</h1>", _verdict(report), _facts(report), *_frames(report), *_figures(report)]
    parts += [*_speed(report), *_composition(report), *_worst(report, pictures)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}"/>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _verdict(report: Report) -> str:
    verdict = report.engine.verdict
    if verdict is None:
        return "<p>The engine is not verified yet.</p>"
    word, kind = ("Accepted", "good") if verdict.accepted else ("Refused", "bad")
    return f'<p><span class="{kind}">{word}</span>{escape(f": {verdict.reason}" if verdict.reason else "")}</p>'


def _facts(report: Report) -> str:
    engine = report.engine
    speed = "not measured" if engine.speed is None else f"{engine.speed:.2f} times the reference"
    rows = {
        "key": engine.key,
        "engine": f"{engine.backend} on {engine.device}, {engine.precision}",
        "state": f"{engine.state}: {engine.reason}" if engine.reason else engine.state,
        "speed": speed,
        "built": formatting.moment(engine.created_unix_s) if engine.build_s is not None else "not yet",
    }
    return _table((), rows.items())


def _frames(report: Report) -> Iterable[str]:
    yield "<h2>Answers on frames of cameras</h2>"
    found = report.judgement
    if found is None or found.outcome == "no_frames":
        yield f"<p>{escape(f'The engine was not judged on frames of cameras: {report.engine.unjudged}')}</p>"
        return
    skipped = f" {formatting.many(found.skipped, 'frame')} could not be read." if found.skipped else ""
    yield (
        f"<p>{formatting.many(found.frames, 'frame')} of {formatting.many(len(found.cameras), 'camera')} with"
        f" {formatting.many(found.objects, 'object')}, which the engine was not calibrated on (collection"
        f" {escape(found.collection)}). The reference's answers count as right.{skipped}</p>"
    )
    yield _bounded(found.figures, found.bounds)
    if curve := charts.score_curves(found.curve):
        yield f"<h3>Precision and recall over the score</h3>{curve}"
    for name, tallies in (("class", found.classes), ("camera", found.cameras)):
        if tallies:
            yield f"<h3>By {name}</h3>{_tallies(name, tallies)}"


def _figures(report: Report) -> Iterable[str]:
    verdict = report.engine.verdict
    if verdict is not None and verdict.figures:
        yield "<h2>Answers to golden inputs</h2>"
        yield _bounded(verdict.figures, _deciding(verdict, report.bounds))


def _deciding(verdict: Verdict, bounds: Mapping[str, float]) -> dict[str, float]:
    """Return the bounds that decided the verdict. Some figures decide nothing: `top1` is recorded for every model, but
    decides only for classifiers. The result lacks the bound of a figure that is outside its bound but not named in the
    verdict's reason."""
    figures, reason = verdict.figures, verdict.reason
    return {
        name: bound
        for name, bound in bounds.items()
        if name not in figures or _is_kept(name, figures[name], bound) or f"{name} " in reason
    }


def _speed(report: Report) -> Iterable[str]:
    yield "<h2>Speed</h2>"
    chart = charts.latencies(report.blocks.engine, report.blocks.reference)
    if chart:
        yield '<p class="dim">Each dot is the median of a block of inferences; engine and reference take turns.</p>'
        yield chart
    if report.engine.speeds:
        rows = [
            (
                f"{speed.instances}, with"
                f" {formatting.many(speed.threads, 'thread') if speed.threads else 'all threads'} each",
                *(f"{ms:.3f}" for ms in (speed.latency_ms, speed.interval_ms, speed.reference_ms)),
            )
            for speed in report.engine.speeds
        ]
        head = ("instances", "one inference, ms", "between answers, ms", "reference, ms")
        yield _table(head, rows, numbers=True)
    elif not chart:
        yield "<p>The engine was not timed.</p>"


def _composition(report: Report) -> Iterable[str]:
    made = report.engine.composition
    lines = {"Layers that stayed in float": made.kept, "On another device": made.fallback, "Notes": made.notes}
    if not made.layers and not any(lines.values()):
        return
    yield "<h2>Composition</h2>"
    if made.layers:
        yield _table(("precision", "layers"), ((name, str(count)) for name, count in made.layers.items()), numbers=True)
    for name, items in lines.items():
        if items:
            more = f"<li>{len(items) - _MOST_LINES} more</li>" if len(items) > _MOST_LINES else ""
            yield f"<h3>{name}</h3><ul>{''.join(f'<li>{escape(each)}</li>' for each in items[:_MOST_LINES])}{more}</ul>"


def _worst(report: Report, pictures: Mapping[str, tuple[bytes, bytes]]) -> Iterable[str]:
    worst = report.judgement.worst if report.judgement is not None else ()
    if not worst:
        return
    yield "<h2>Frames with the largest differences</h2>"
    if report.no_pictures:
        yield f'<p class="dim">{escape(report.no_pictures)}</p>'
    for frame in worst:
        yield _frame(frame, report.engine.precision, pictures.get(frame.name, (b"", b"")))


def _frame(frame: WorstFrame, precision: str, jpegs: tuple[bytes, bytes]) -> str:
    figures = ", ".join(f"{name} {value:.3g}" for name, value in frame.figures.items())
    sides = (("fp32", frame.expected, frame.expected_lines), (precision, frame.found, frame.found_lines))
    shown = []
    for (name, boxes, lines), jpeg in zip(sides, jpegs, strict=True):
        said = "; ".join(lines) if lines else formatting.many(len(boxes), "detection")
        caption = f"{name}: {said}"
        data = base64.b64encode(jpeg).decode()
        image = (
            f'<img alt="{escape(f"{frame.camera}, {caption}")}" src="data:image/jpeg;base64,{data}"/>' if jpeg else ""
        )
        shown.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    return (
        f'<h3>{escape(f"{frame.name}, camera {frame.camera}: {figures}")}</h3><div class="pair">{"".join(shown)}</div>'
    )


def _bounded(figures: Mapping[str, float], bounds: Mapping[str, float]) -> str:
    rows = []
    for name, value in figures.items():
        bound = bounds.get(name)
        limit = "" if bound is None else f"{'at least' if name in FLOORS else 'at most'} {bound:g}"
        kept = bound is None or _is_kept(name, value, bound)
        rows.append((name, f"{value:.5g}", limit if kept else f"{limit}, not kept"))
    return _table(("figure", "value", "limit"), rows, numbers=True)


def _is_kept(figure: str, value: float, bound: float) -> bool:
    return value >= bound if figure in FLOORS else value <= bound


def _tallies(kind: str, tallies: Sequence[Tally]) -> str:
    names = list(dict.fromkeys(name for tally in tallies for name in tally.figures))
    rows = (
        (tally.name, str(tally.objects), str(tally.found), *(_value(tally.figures.get(name)) for name in names))
        for tally in tallies
    )
    return _table((kind, "fp32", "engine", *names), rows, numbers=True)


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a table whose first column names the rows. With `numbers` the other columns are aligned to the right."""
    kind = ' class="number"' if numbers else ""
    title = "".join(f'<th scope="col"{kind if place else ""}>{escape(text)}</th>' for place, text in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td{kind}>{escape(text)}</td>" for text in row[1:])}</tr>'
        for row in rows
    )
    top = f"<thead><tr>{title}</tr></thead>" if head else ""
    return f'<div class="scroll" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>'
