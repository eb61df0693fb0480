"""`edged family`: writes a new Python package for a model family, and lists the families."""

from __future__ import annotations

import asyncio
import keyword
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged.cli import common
from edged.errors import AlreadyExists, EdgedError, InvalidInput

if TYPE_CHECKING:
    from importlib.abc import Traversable

_TEMPLATE, _ENDING = "family_template", ".in"
_PREFIX = "edged-family-"
_LONGEST_NAME = 40  # the lines of the template stay short enough
# Folder of the template -> folder of a project. The Debian package would omit a folder of the template named `tests`.
_FOLDERS = {"package": "@MODULE@", "checks": "tests"}


class Listed(msgspec.Struct, frozen=True):
    """A family for `edged family list`. `allowed` says whether the family's code may run. `problem` is the reason why
    the family cannot be used, otherwise empty. edged loads only allowed families. Therefore the list does not show all
    problems of other families."""

    family: str
    package: str
    version: str
    allowed: bool
    problem: str = ""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The family's name, as in the setting family=NAME.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help=f"The new folder; default: {_PREFIX}NAME.")
    ] = None,
) -> None:
    """Write a small Python package with a model family.

    The package has a working example (a detector with three outputs), a test, and the entry point by which edged finds
    the family. Replace the example with your model's format. An existing folder is never changed.

    \b
    edged family new car-plates
    cd edged-family-car-plates && pip install -e '.[dev]' && pytest

    Then allow the family in the daemon's configuration, and give it to a model:

    \b
    [families]
    allow = ["car-plates"]

    \b
    sudo edged reload
    edged models add gate gate.onnx --set family=car-plates
    """
    folder = write_project(name, into)
    common.show(f"{folder}: a package with the family {name}; {folder / 'README.md'} says how to test and use it")


def list_(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The file; default: the file that edged serve or the service reads."),
    ] = None,
    json: common.Json = False,
) -> None:
    """List the families of other packages and of edged.

    The code of a package runs only if families.allow in the configuration names its family. This command loads the
    allowed families in a child process, as the daemon does. If a family cannot be used, it shows why.

    Exit status: 0 every allowed family can be used, 1 an allowed family cannot be used.
    """
    from edged.cli.config import read_usual

    reading, _ = read_usual(config)
    found = asyncio.run(listed(reading.config.families.allow))
    if json:
        common.print_json(msgspec.json.encode(found))
    else:
        table = common.table("family", "package", "version", "allowed", "problem")
        for each in found:
            table.add_row(each.family, each.package, each.version, "yes" if each.allowed else "no", each.problem)
        common.show(table)
    if any(each.allowed and each.problem for each in found):
        raise typer.Exit(common.FAILED)


async def listed(allowed: tuple[str, ...]) -> list[Listed]:
    """Return the families of other packages, then the families of edged. Loads the allowed families of other packages
    in a child process."""
    from edged import family_packages, paths
    from edged.engines.families import Families
    from edged.version import __version__
    from edged.vision.family import FAMILIES

    families, offers = Families(paths.default_cache_dir(), allowed), family_packages.offers()
    usable = [offer for offer in offers if offer.family in allowed and not families.obstacle(offer.family, offers)]
    problems = dict(zip((offer.family for offer in usable), await families.load(usable) if usable else (), strict=True))
    found = []
    for offer in offers:
        why = problems.get(offer.family) or families.obstacle(offer.family, offers)
        package = offer.package
        found.append(Listed(offer.family, package.name, package.version, offer.family in allowed, why))
    there = {offer.family for offer in offers}
    missing = [Listed(name, "", "", True, families.obstacle(name, offers)) for name in allowed if name not in there]
    own = [Listed(name, "edged", __version__, True) for name in sorted(FAMILIES)]
    return [*sorted((*found, *missing), key=lambda each: each.family), *own]


def write_project(name: str, into: Path | None = None) -> Path:
    """Write the package of a new family, and return its folder. Raises InvalidInput for a name that a family cannot
    have, AlreadyExists if the folder exists, EdgedError if a file cannot be written."""
    _require_name(name)
    project = f"{_PREFIX}{name.replace('_', '-')}"
    folder = into or Path(project)
    template = list(_files(resources.files("edged.cli").joinpath(_TEMPLATE), Path()))
    values = {
        "@FAMILY@": name,
        "@PROJECT@": project,
        "@MODULE@": project.replace("-", "_"),
        "@CLASS@": _class_name(name, [text for _, text in template]),
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise AlreadyExists(f"folder {folder} already exists; give --into another folder") from None
    except OSError as error:
        raise EdgedError(common.refused_by_system(error, folder)) from error
    try:
        for path, text in template:
            place = folder / _filled("/".join(_FOLDERS.get(part, part) for part in path.parts), values)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_filled(text, values), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EdgedError(common.refused_by_system(error, folder)) from error
    return folder


def _class_name(name: str, texts: Iterable[str]) -> str:
    """Return a name for the family's class. The name is not a keyword of Python and does not occur in the template."""
    found = "".join(part.capitalize() for part in name.replace("_", "-").split("-"))
    is_taken = keyword.iskeyword(found) or any(re.search(rf"\b{found}\b", text) for text in texts)
    return f"{found}Family" if is_taken else found


def _require_name(name: str) -> None:
    from edged.family_packages import NAME
    from edged.vision.family import FAMILIES, RAW

    if name in FAMILIES or name == RAW:
        raise InvalidInput(f"the name {name!r} belongs to a family of edged; choose another name")
    is_plain = name[:1].isalpha() and "." not in name and not any(mark * 2 in name for mark in "-_")
    if not NAME.fullmatch(name) or not is_plain or len(name) > _LONGEST_NAME:
        allowed = f"up to {_LONGEST_NAME} lower-case letters, digits, and single - or _ between them, a letter first"
        raise InvalidInput(f"invalid family name {name[:80]!r}; use {allowed}")


def _files(folder: Traversable, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each template file. Paths are relative to the template's folder and lack the
    suffix `.in`."""
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _files(each, path / each.name)
        elif each.name.endswith(_ENDING):
            yield path / each.name.removesuffix(_ENDING), each.read_text(encoding="utf-8")


def _filled(text: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
