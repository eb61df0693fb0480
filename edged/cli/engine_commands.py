"""The commands of `edged engines` that need a daemon: rebuild, verify, cancel, pin, unpin, evict."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from edged import formatting
from edged.api_types import EngineProgress
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import EdgedError, InvalidInput

if TYPE_CHECKING:
    from edged.client.client import Client
    from edged.client.stream import Updates

Model = Annotated[str | None, typer.Argument(help="All engines of this model.")]
Key = Annotated[
    str | None,
    typer.Option("--engine", metavar="KEY", help="The engine with this key, or its first 6 or more characters."),
]
All = Annotated[bool, typer.Option("--all", help="All engines of all models.")]

_NOTHING = {
    "rebuild": "nothing to rebuild: no engine is missing; use --force to rebuild existing engines",
    "verify": "nothing to verify: none of these engines is in the store",
    "cancel": "nothing to cancel: no build of these engines is running or queued",
    "pin": "nothing to pin: none of these engines is in the store",
    "unpin": "nothing to unpin: none of these engines is in the store",
    "evict": "nothing to evict: these engines are in use, pinned, already evicted or not built",
}


def rebuild(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    force: Annotated[bool, typer.Option("--force", help="Also rebuild engines that are accepted or rejected.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show progress until all is done.")] = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Build missing engines again, or all selected ones with --force.

    Engines that failed too often, were cancelled or were evicted are tried again. The old engine keeps serving until
    the new one is verified.

    Without --follow the command returns at once; see `edged status` for progress. With --follow the exit status is 1 if
    any engine was not built. With --json it prints one object per line for every change.
    """
    _require_selection("rebuild", model, engine, everything)

    def order(client: Client) -> Updates[EngineProgress]:
        return client.rebuild(model, engine=engine, everything=everything, force=force, follow=follow)

    _order(order, "rebuild", "rebuilt", targets, follow, json)


def verify(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Show progress until all is done.")] = True,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Compare engines with the reference again, and time them again.

    Use this command if you doubt the answers of an engine, for example after an update of a driver.

    An engine whose answers are now wrong is rejected and stops serving. The exit status is 1 if any engine did not
    pass. With --json it prints one object per line for every change.
    """
    _require_selection("verify", model, engine, everything)

    def order(client: Client) -> Updates[EngineProgress]:
        return client.verify(model, engine=engine, everything=everything, follow=follow)

    _order(order, "verify", "verified", targets, follow, json)


# For each verb: the participle that is printed, and the help.
_SELECTIONS = {
    "cancel": (
        "cancelled",
        """Cancel running and queued builds.

        The daemon does not build these engines again until `edged engines rebuild`.

        Existing engines are not changed.
        """,
    ),
    "pin": ("pinned", "Protect engines from eviction until they are unpinned."),
    "unpin": ("unpinned", "Allow the eviction of engines again."),
    "evict": (
        "evicted",
        """Remove engines that are not in use, to free disk space.

        The daemon also evicts engines when it needs space.

        --all removes all engines that are not needed. Engines that serve, will serve soon, or are pinned stay; the
        command fails if it selects only these. An evicted engine keeps its record. It is built again when it is
        needed, or by `edged engines rebuild`.
        """,
    ),
}


def _selection_command(verb: str, done: str, text: str) -> Callable[..., None]:
    def select(
        model: Model = None,
        engine: Key = None,
        everything: All = False,
        targets: Targets = DEFAULT_TARGETS,
        json: common.Json = False,
    ) -> None:
        def call(client: Client) -> list[str]:
            calls = {"cancel": client.cancel, "pin": client.pin, "unpin": client.unpin, "evict": client.evict}
            return calls[verb](model, engine=engine, everything=everything)

        _require_selection(verb, model, engine, everything)
        command = RemoteCommand(
            call=call,
            render=lambda keys: [f"{done} {key[:12]}" for key in keys] or [_NOTHING[verb]],
            to_json=lambda keys: {"engines": keys},
        )
        remote.run(command, targets, json)

    select.__name__, select.__doc__ = verb, text
    return select


COMMANDS: tuple[Callable[..., None], ...] = (
    rebuild,
    verify,
    *(_selection_command(verb, *named) for verb, named in _SELECTIONS.items()),
)


def _require_selection(verb: str, model: str | None, engine: str | None, everything: bool) -> None:
    """Raise InvalidInput if the arguments select nothing, or if --all is combined with a model or an engine."""
    some = bool(model or engine)
    if some and everything:
        raise InvalidInput("--all cannot be used with MODEL or --engine; leave out one of them")
    if not some and not everything:
        rest = "--all for all engines that are not needed" if verb == "evict" else "--all"
        raise InvalidInput(f"nothing selected to {verb}; give MODEL, --engine KEY, or {rest}")


def _order(
    order: Callable[[Client], Updates[EngineProgress]], verb: str, done: str, targets: Targets, follow: bool, json: bool
) -> None:
    """Send a command to the daemons. With `follow`, show the progress until all engines are done. Ctrl-C ends only the
    display, not the work.

    `verb` and `done` are words for messages, such as "rebuild" and "rebuilt". If an engine does not succeed while
    `follow` is set, raises EdgedError for a single box, and exits with status 1 for several boxes.
    """
    command: RemoteCommand[list[EngineProgress]] = RemoteCommand(
        call=lambda client: list(order(client)),
        render=lambda engines: [formatting.line(engine) for engine in engines] or [_NOTHING[verb]],
        to_json=lambda engines: [engine.json() for engine in engines],
        if_interrupted=_GOES_ON,
    )
    if not follow and (targets.is_fleet or not json):
        remote.run(command, targets, json)
        return

    def work(client: Client, report: Callable[[EngineProgress], None]) -> list[EngineProgress]:
        last: dict[_Which, EngineProgress] = {}
        for update in order(client):
            last[update.model, update.key] = update
            report(update)
        return list(last.values())

    if targets.is_fleet:
        _follow_fleet(
            dataclasses.replace(command, failure=lambda engines: _trouble(engines, done)), work, targets, json
        )
        return
    with targets.client() as client:
        try:
            with _display(json) as show:
                engines = work(client, functools.partial(show, ""))
        except KeyboardInterrupt:
            common.say(_GOES_ON)
            raise
    if not json:
        _print_outcomes("", command.render(engines), engines)
    if follow and (wrong := _trouble(engines, done)):
        raise EdgedError(wrong)


_Show: TypeAlias = Callable[[str, EngineProgress], None]  # gets the box's name (empty for a single box) and the update
_Which: TypeAlias = tuple[str, str]  # model and key, since models with equal content share engines

_GOES_ON = "the daemon continues this work; see: edged status; to stop the work: edged engines cancel"


def _follow_fleet(
    command: RemoteCommand[list[EngineProgress]],
    work: remote.Work[EngineProgress, list[EngineProgress]],
    targets: Targets,
    json: bool,
) -> None:
    boxes, answers = targets.boxes(), dict[str, list[EngineProgress]]()

    def on_outcome(end: remote.BoxOutcome[list[EngineProgress]]) -> None:
        if end.answer is not None:
            answers[end.box] = end.answer

    quiet = dataclasses.replace(command, render=lambda _: ())
    with _display(json) as show:
        # Call all boxes at once: each box does its own work, and need not wait until another box has finished.
        ended = remote.run_on_fleet(quiet, boxes, json, work, on_update=show, on_outcome=on_outcome, at_once=len(boxes))
    for box in boxes:
        if box.name in answers:
            _print_outcomes(box.name, command.render(answers[box.name]), answers[box.name])
    remote.print_summary(ended, boxes, json)


def _trouble(engines: Collection[EngineProgress], done: str) -> str:
    """Return a line about the engines that did not succeed; an empty text if all succeeded. `done` is a word for the
    line, such as "rebuilt"."""
    wrong = [engine for engine in engines if not engine.succeeded]
    if not wrong:
        return ""
    lines = "; ".join(formatting.line(engine) for engine in wrong)
    return f"{len(wrong)} of {len(engines)} engines could not be {done}: {lines}"


def _draws() -> bool:
    return common.err.is_terminal and not common.err.is_dumb_terminal


def _display(json: bool) -> contextlib.AbstractContextManager[_Show]:
    if json:
        return contextlib.nullcontext(_print_json)
    return _bars() if _draws() else contextlib.nullcontext(_lines())


def _print_outcomes(box: str, lines: Iterable[object], engines: Sequence[EngineProgress]) -> None:
    """Print `lines`, the outcomes of `engines`, if progress bars were shown, because the bars disappear at the end.
    Without engines, `lines` say that nothing was done, and are always printed."""
    if _draws() or not engines:
        for line in lines:
            common.show(_of(box, str(line)))


def _of(box: str, line: str) -> str:
    return f"{box}: {line}" if box else line


def _print_json(box: str, update: EngineProgress) -> None:
    plain = {"box": box, "update": update.json()} if box else update.json()
    common.print_json(msgspec.json.encode(plain))


def _lines() -> _Show:
    """Return a function that prints one line for each step of an engine, not for each update."""
    steps: dict[tuple[str, _Which], tuple[object, ...]] = {}

    def show(box: str, update: EngineProgress) -> None:
        step, whose = (update.state, update.phase, update.reason, update.done), (box, (update.model, update.key))
        if steps.get(whose) != step:
            steps[whose] = step
            common.show(_of(box, formatting.line(update)))

    return show


@contextlib.contextmanager
def _bars() -> Iterator[_Show]:
    """Show progress bars on standard error and remove them at the end. Yield the function that updates them. A bar
    pulses while the progress is unknown."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[standing]}", markup=False),
    )
    tasks: dict[tuple[str, _Which], TaskID] = {}
    with Progress(*columns, console=common.err, transient=True) as progress:

        def show(box: str, update: EngineProgress) -> None:
            whose = (box, (update.model, update.key))
            if whose not in tasks:
                tasks[whose] = progress.add_task(_of(box, formatting.name(update)), standing="", total=None)
            share = 1.0 if update.done else 0.0 if update.phase == "waiting" else update.fraction
            progress.update(
                tasks[whose],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                standing=_standing(update),
            )

        yield show


def _standing(update: EngineProgress) -> str:
    if update.done:
        return update.state
    return "  ".join(
        filter(None, (update.phase or update.state, formatting.times(update.elapsed_s, update.estimate_s)))
    )
