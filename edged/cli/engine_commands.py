"""The part of `edged engines` that changes something: rebuild, verify, cancel, pin, unpin, evict. All need a daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged.cli import answers, common, progress, words
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching
from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.client.client import Client
    from edged.client.commands import EngineProgress
    from edged.client.updates import Updates

Model = Annotated[str | None, typer.Argument(help="All engines of this model.", show_default=False)]
Key = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="KEY",
        help="The one with this key, or its beginning: 6 characters at least.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="All engines of all models.")]

_NOTHING = {
    "rebuild": "nothing to rebuild: every engine is there; --force makes them anew all the same",
    "verify": "nothing to verify",
    "cancel": "nothing to cancel: none of these is being made or waits for it",
    "pin": "nothing to pin: the store holds no engine",
    "unpin": "nothing to unpin: the store holds no engine",
    "evict": "nothing to evict: what is in the store is needed",
}
_DONE = {"cancel": "cancelled", "pin": "pinned", "unpin": "unpinned", "evict": "evicted"}


def rebuild(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that are good as they are, or whose answers were wrong.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show how it goes, until all is done.")] = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Make engines: those that are missing, whatever kept them, or with --force all that are selected.

    That is also how an engine that failed too often, was cancelled or was evicted is tried again. What serves goes on
    serving until the new engine has proved itself right.

    Without --follow the command leaves when the daemon has taken the order: see `edged status`. With it the status is 1
    when any engine was not made. With --json one object a line for every change.
    """
    _require_selection("rebuild", model, engine, everything)

    def order(client: Client) -> Updates[EngineProgress]:
        return client.rebuild(model, engine=engine, everything=everything, force=force, follow=follow)

    _order(order, "rebuild", "rebuilt", reach, follow, json)


def verify(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Show how it goes, to its end.")] = True,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Compare engines with the reference again, and time them again, as after a doubtful update.

    One whose answers are wrong by now is rejected and served no more. The status is 1 when any engine did not pass.
    With --json one object a line for every change.
    """
    _require_selection("verify", model, engine, everything)

    def order(client: Client) -> Updates[EngineProgress]:
        return client.verify(model, engine=engine, everything=everything, follow=follow)

    _order(order, "verify", "verified", reach, follow, json)


def cancel(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """End the making of engines, or their waiting for it; they are left alone until `edged engines rebuild`.

    An engine that was there before stays as it was.
    """
    _require_selection("cancel", model, engine, everything)
    _select("cancel", lambda client: client.cancel(model, engine=engine, everything=everything), reach, json)


def pin(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Keep engines from being evicted, whatever room is wanted, until they are unpinned."""
    _require_selection("pin", model, engine, everything)
    _select("pin", lambda client: client.pin(model, engine=engine, everything=everything), reach, json)


def unpin(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Let engines be evicted again."""
    _require_selection("unpin", model, engine, everything)
    _select("unpin", lambda client: client.unpin(model, engine=engine, everything=everything), reach, json)


def evict(
    model: Model = None,
    engine: Key = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that nothing needs.")] = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Remove engines' files to make room. The daemon does so by itself when it needs room; this is for right now.

    What serves, soon will, or is pinned stays; naming such an engine is refused. An evicted engine keeps its record
    and is made again when it is wanted: `edged engines rebuild`.
    """
    _require_selection("evict", model, engine, everything)
    _select("evict", lambda client: client.evict(model, engine=engine, everything=everything), reach, json)


def register(engines: typer.Typer) -> None:
    """Adds the commands to the group."""
    for each in (rebuild, verify, cancel, pin, unpin, evict):
        engines.command(each.__name__)(common.command(reaching(each)))


def _require_selection(verb: str, model: str | None, engine: str | None, everything: bool) -> None:
    """InvalidInput where nothing is selected, or both something and all."""
    some = bool(model or engine)
    if some and everything:
        raise InvalidInput(f"{verb} either a MODEL or an engine, or --all, not both")
    if not some and not everything:
        rest = "--all for everything that nothing needs" if verb == "evict" else "--all"
        raise InvalidInput(f"{verb} what? name a MODEL, an engine with --engine KEY, or {rest}")


def _order(
    order: Callable[[Client], Updates[EngineProgress]], verb: str, done: str, reach: Reach, follow: bool, json: bool
) -> None:
    """What was ordered, and if it is followed, how it ends."""
    if follow:
        progress.follow(order, reach, json, done, _NOTHING[verb])
    elif reach.is_fleet or not json:
        question = Question(
            ask=lambda client: list(order(client)),
            tell=lambda engines: [words.line(engine) for engine in engines] or [_NOTHING[verb]],
            plain=lambda engines: [engine.json() for engine in engines],
            lasting=progress.GOES_ON,
        )
        answers.put(question, reach, json)
    else:
        with reach.client() as client:
            for engine in order(client):
                common.print_json(msgspec.json.encode(engine.json()))


def _select(verb: str, select: Callable[[Client], list[str]], reach: Reach, json: bool) -> None:
    question = Question(
        ask=select,
        tell=lambda keys: [f"{_DONE[verb]} {key[:12]}" for key in keys] or [_NOTHING[verb]],
        plain=lambda keys: {"engines": keys},
    )
    answers.put(question, reach, json)
