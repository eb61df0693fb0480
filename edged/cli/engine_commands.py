"""The part of `edged engines` that changes something: rebuild, verify, cancel, pin, unpin, evict. All need a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged.cli import common, progress, words
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
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Make engines: those that are missing, whatever kept them, or with --force all that are selected.

    That is also how an engine that failed too often, was cancelled or was evicted is tried again. What serves goes on
    serving until the new engine has proved itself right.

    Without --follow the command leaves when the daemon has taken the order: see `edged status`. With it the status is 1
    when any engine was not made. With --json one object a line for every change.
    """
    _require_selection("rebuild", model, engine, everything)
    with _client(target) as client:
        updates = client.rebuild(model, engine=engine, everything=everything, force=force, follow=follow)
        _show(updates, "rebuild", "rebuilt", follow, json)


def verify(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Show how it goes, to its end.")] = True,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Compare engines with the reference again, and time them again, as after a doubtful update.

    One whose answers are wrong by now is rejected and served no more. The status is 1 when any engine did not pass.
    With --json one object a line for every change.
    """
    _require_selection("verify", model, engine, everything)
    with _client(target) as client:
        updates = client.verify(model, engine=engine, everything=everything, follow=follow)
        _show(updates, "verify", "verified", follow, json)


def cancel(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """End the making of engines, or their waiting for it; they are left alone until `edged engines rebuild`.

    An engine that was there before stays as it was.
    """
    _require_selection("cancel", model, engine, everything)
    with _client(target) as client:
        _tell("cancel", client.cancel(model, engine=engine, everything=everything), json)


def pin(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Keep engines from being evicted, whatever room is wanted, until they are unpinned."""
    _require_selection("pin", model, engine, everything)
    with _client(target) as client:
        _tell("pin", client.pin(model, engine=engine, everything=everything), json)


def unpin(
    model: Model = None,
    engine: Key = None,
    everything: All = False,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Let engines be evicted again."""
    _require_selection("unpin", model, engine, everything)
    with _client(target) as client:
        _tell("unpin", client.unpin(model, engine=engine, everything=everything), json)


def evict(
    model: Model = None,
    engine: Key = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that nothing needs.")] = False,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Remove engines' files to make room. The daemon does so by itself when it needs room; this is for right now.

    What serves, soon will, or is pinned stays; naming such an engine is refused. An evicted engine keeps its record
    and is made again when it is wanted: `edged engines rebuild`.
    """
    _require_selection("evict", model, engine, everything)
    with _client(target) as client:
        _tell("evict", client.evict(model, engine=engine, everything=everything), json)


def register(engines: typer.Typer) -> None:
    """Adds the commands to the group."""
    for each in (rebuild, verify, cancel, pin, unpin, evict):
        engines.command(each.__name__)(common.command(each))


def _require_selection(verb: str, model: str | None, engine: str | None, everything: bool) -> None:
    """InvalidInput where nothing is selected, or both something and all."""
    some = bool(model or engine)
    if some and everything:
        raise InvalidInput(f"{verb} either a MODEL or an engine, or --all, not both")
    if not some and not everything:
        rest = "--all for everything that nothing needs" if verb == "evict" else "--all"
        raise InvalidInput(f"{verb} what? name a MODEL, an engine with --engine KEY, or {rest}")


def _client(target: str | None) -> Client:
    from edged.client.client import Client

    return Client(target)


def _show(updates: Updates[EngineProgress], verb: str, done: str, follow: bool, json: bool) -> None:
    """What was ordered, and if it is followed, how it ends."""
    if follow:
        engines = progress.follow(updates, json)
        progress.require_success(engines, done)
    else:
        engines = list(updates)
        for engine in engines:
            if json:
                common.print_json(msgspec.json.encode(engine.json()))
            else:
                common.show(words.line(engine))
    if not engines and not json:
        common.show(_NOTHING[verb])


def _tell(verb: str, keys: list[str], json: bool) -> None:
    if json:
        common.print_json(msgspec.json.encode({"engines": keys}))
        return
    for key in keys:
        common.show(f"{_DONE[verb]} {key[:12]}")
    if not keys:
        common.show(_NOTHING[verb])
