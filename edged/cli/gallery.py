"""`edged gallery`: add, list and remove the names of an embedding model's gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edged import formatting
from edged.api_types import GalleryInfo
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import InvalidInput

_Model = Annotated[str, typer.Argument(help="The embedding model; see edged models list.")]


def add(
    model: _Model,
    name: Annotated[str, typer.Argument(help="The name of the person or thing in the pictures.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE...", help="JPEG or PNG files, at most 32.")],
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="X,Y,W,H", help="Use only this part of each picture, such as a face."),
    ] = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Add named pictures to a model's gallery.

    The daemon computes embeddings of the pictures with the model, and keeps the embeddings but not the pictures.
    Results of the model then have the name of the most similar picture, so several pictures of a person or thing help.
    Each picture must show what the model will see later. For a model of faces, one face must fill the picture or the
    region.

    edged gallery add faces Ada ada-1.jpg ada-2.jpg
    """
    part = common.parse_region(region)
    command = RemoteCommand(
        call=lambda client: client.add_to_gallery(model, name, pictures, region=part),
        render=lambda found: [f"added {formatting.many(len(pictures), 'picture')} of {name}; {_summary(found)}"],
        to_json=GalleryInfo.json,
    )
    remote.run(command, targets, json, "computing embeddings")


def list_(
    model: Annotated[str | None, typer.Argument(help="Show only the gallery of this model.")] = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Show the names in the galleries, and why a gallery is not used."""
    command = remote.list_command(
        lambda client: [each for each in client.galleries() if model in (None, each.model)],
        _COLUMNS,
        lambda found: [each.json() for each in found],
        empty="no names yet; add one: edged gallery add MODEL NAME PICTURE",
    )
    remote.run(command, targets, json)


def remove(
    model: _Model,
    name: Annotated[str | None, typer.Argument(help="The name to remove.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all names of the model.")] = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Remove a name from a model's gallery, or all names."""
    if (name is None) is not everything:
        raise InvalidInput(f"give either NAME or --all, and not both: edged gallery remove {model} NAME")
    command = RemoteCommand(
        call=lambda client: client.remove_from_gallery(model, name, everything=everything),
        render=lambda found: [f"removed {name or 'all names'}; {_summary(found)}"],
        to_json=GalleryInfo.json,
    )
    remote.run(command, targets, json)


def _summary(found: GalleryInfo) -> str:
    names, pictures = len(found.names), sum(found.names.values())
    text = f"gallery of {found.model}: {formatting.many(names, 'name')} and {formatting.many(pictures, 'picture')}"
    return f"{text}; the gallery is not used: {found.problem}" if found.problem else text


_COLUMNS: tuple[remote.Column[GalleryInfo], ...] = (
    remote.Column("MODEL", lambda each: each.model, is_whole=True),
    remote.Column("NAMES", lambda each: ", ".join(f"{name} ({count})" for name, count in each.names.items())),
    remote.Column("SIZE", lambda each: formatting.size(each.bytes)),
    remote.Column("NOT USED", lambda each: each.problem, is_optional=True),
)
