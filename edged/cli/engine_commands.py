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
    from edged.api_types import EngineProgress
    from edged.client.client import Client
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
    "rebuild": "nothing to rebuild: no engine is missing; --force rebuilds those that are there",
    "verify": "nothing to verify",
    "cancel": "nothing to cancel: no build of these engines is running or queued",
    "pin": "nothing to pin: the store holds no engine",
    "unpin": "nothing to unpin: the store holds no engine",
    "evict": "nothing to evict: these engines are in use, or are evicted already",
}
_DONE = {"cancel": "cancelled", "pin": "pinned", "unpin": "unpinned", "evict": "evicted"}


def rebuild(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    force: Annotated[bool, typer.Option("--force", help="Also engines that are fine, or were rejected.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show progress until all is done.")] = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Build missing engines again, or all selected ones with --force.

    Engines that failed too often, were cancelled or were evicted are tried again. Serving goes on with the old engine
    until the new one is verified.

    Without --follow the command returns at once: see `edged status`. With it the exit status is 1 if any engine was not
    built. With --json one object a line for every change.
    """
    _require_selection("rebuild", model, engine, everything)

    def order(client: Client) -> Updates[EngineProgress]:
        return client.rebuild(model, engine=engine, everything=everything, force=force, follow=follow)

    _order(order, "rebuild", "rebuilt", reach, follow, json)


def verify(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Show progress until all is done.")] = True,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Compare engines with the reference again, and time them again.

    For use after a doubtful update.

    An engine whose answers are wrong now is rejected and no longer serves. The exit status is 1 if any engine did not
    pass. With --json one object a line for every change.
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
    """Cancel builds that run or wait.

    These engines are not built again until `edged engines rebuild`.

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
    """Keep engines from being evicted until they are unpinned."""
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
    everything: Annotated[bool, typer.Option("--all", help="All engines that are not needed.")] = False,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Remove engines that are not in use, to free disk space.

    The daemon does so by itself when it needs space.

    An engine that serves, soon will, or is pinned is kept; naming one is refused. An evicted engine keeps its record
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
        rest = "--all for those that are not needed" if verb == "evict" else "--all"
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
