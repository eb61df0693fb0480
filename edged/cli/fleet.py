"""`edged fleet`: the keys of boxes that share engines, and the engines in the shared store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged import formatting
from edged.cli import common
from edged.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from edged.fleet.keys import Keys
    from edged.fleet.shelf import Shared, Shelf

_State = Annotated[
    Path | None, typer.Option("--state", help="The daemon's directory for models, which contains the keys.")
]
_Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="The shared store; default: fleet.store of the configuration.",
    ),
]


def keygen(state: _State = None, json: common.Json = False) -> None:
    """Make the key of this box, and print its public part.

    To use engines of this box on another box, run there: edged fleet trust NAME PUBLIC_KEY
    """
    kept = _keys(state)
    public = kept.generate()
    common.say(f"the private key of this box is kept in {kept.place}")
    if json:
        common.print_json(msgspec.json.encode({"public_key": public}))
    else:
        common.show(public)


def trust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the box.")],
    key: Annotated[
        str, typer.Argument(metavar="PUBLIC_KEY", help="The box's public key, as edged fleet keygen printed it.")
    ],
    state: _State = None,
) -> None:
    """Use engines of another box, once they are verified here.

    A running daemon uses the key from its next build on.
    """
    _keys(state).trust(name, key.strip().lower())
    common.show(f"engines of {name} are used, once they are verified here")


def untrust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the box.")],
    state: _State = None,
) -> None:
    """Use no further engines of a box.

    Engines of the other box that are already verified here keep serving. To replace them, build the engines of the
    model again: edged engines rebuild MODEL --force
    """
    _keys(state).untrust(name)
    common.show(f"no further engines of {name} are used")


def keys(state: _State = None, json: common.Json = False) -> None:
    """Show the key of this box, and the boxes that it trusts."""
    kept = _keys(state)
    own, others = kept.public(), kept.trusted()
    if json:
        common.print_json(msgspec.json.encode({"public_key": own or None, "trusted": others}))
        return
    table = common.table("BOX", "PUBLIC KEY")
    table.add_row("this box", own or "none; make one: edged fleet keygen")
    for name, key in others.items():
        table.add_row(name, key)
    common.show(table)


def list_(store: _Store = "", state: _State = None, json: common.Json = False) -> None:
    """List the engines in the shared store."""
    found = asyncio.run(_shelf(store, state).engines())
    if json:
        common.print_json(msgspec.json.encode({"engines": found}))
        return
    table = common.table("ENGINE", "MODEL", "BACKEND", "PRECISION", "DEVICE", "BUILT BY", "SIZE", "AGE", "PROBLEM")
    for each in found:
        row = (each.key[:12], each.model, each.backend, each.precision, each.device, each.signer)
        table.add_row(*row, f"{each.bytes / 1e6:.1f} MB" if each.bytes else "", _age(each), each.problem)
    common.show(table if found else "the store has no engines; a box publishes its engines if fleet.publish = true")


def prune(
    older: Annotated[
        float,
        typer.Option(
            "--older-than", min=0, metavar="DAYS", help="Remove engines that were published more than DAYS days ago."
        ),
    ] = 90.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    store: _Store = "",
    state: _State = None,
    json: common.Json = False,
) -> None:
    """Remove old engines from the shared store.

    Files that no engine needs are removed too. A box that already has a removed engine keeps it.
    """
    done = asyncio.run(_shelf(store, state).prune(older * 86400.0, dry_run=dry_run))
    if json:
        common.print_json(msgspec.json.encode(done))
        return
    would = "would be removed" if dry_run else "removed"
    common.show(f"{formatting.many(len(done.engines), 'engine')} and {formatting.many(done.files, 'file')} {would}")
    common.show(f"{done.bytes / 1e6:.1f} MB {'would be' if dry_run else 'are'} freed")


def rollback(
    key: Annotated[str, typer.Argument(help="The engine's key, or its first 6 or more characters.")],
    store: _Store = "",
    state: _State = None,
) -> None:
    """Put the previous version of an engine back in the store.

    If the store has no previous version, the engine is removed from the store. Boxes that have the engine keep it. To
    replace it on such a box, run there: edged engines rebuild MODEL --force
    """
    if len(key) < 6:
        raise InvalidInput(f"{key!r} is too short for the key of an engine; give at least 6 characters")
    has_before = asyncio.run(_shelf(store, state).rollback(key))
    done = "the store has its previous version again" if has_before else "removed from the store"
    common.show(f"engine {key[:12]}: {done}")


def _keys(state: Path | None) -> Keys:
    from edged import paths
    from edged.fleet.keys import Keys

    return Keys((state or paths.default_state_dir()).absolute())


def _shelf(store: str, state: Path | None) -> Shelf:
    from edged.fleet.bucket import Bucket
    from edged.fleet.shelf import Shelf

    return Shelf(Bucket(store or _configured()), _keys(state))


def _configured() -> str:
    import os

    from edged import config, paths

    file = paths.default_config() or paths.SERVICE_CONFIG
    found = config.read(file if file.exists() else None, dict(os.environ), {}).required().fleet.store
    if not found:
        raise ConfigError(
            "no shared store is configured; set fleet.store in the configuration file, or give --store URL"
        )
    return found


def _age(each: Shared) -> str:
    return formatting.span(time.time() - each.published_unix_s) if each.published_unix_s else ""


COMMANDS: tuple[Callable[..., None], ...] = (keygen, trust, untrust, keys, list_, prune, rollback)
