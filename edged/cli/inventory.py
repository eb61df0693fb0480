"""Reads an inventory: a TOML file with boxes that commands can call, by name and group.

    [defaults]
    ca = "ca.pem"                     # paths are relative to the file's folder
    token_file = "token"

    [boxes.dock1]
    target = "tls:dock1.example:8001"
    groups = ["dock", "north"]

Secrets are in separate files. The environment supplies credentials that neither a box nor the defaults set.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.table import Table

from edged.cli import common
from edged.client import address
from edged.decoding import explain, ready
from edged.errors import ConfigError, EdgedError, InvalidInput
from edged.files import read_regular

if TYPE_CHECKING:
    from edged.client.credentials import Credentials

_FILES = ("ca", "certificate", "key", "token_file")
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one box, or the defaults of all boxes: paths of PEM files and a token file, the name in the
    certificate, and a timeout in seconds."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    server_name: str = ""
    timeout_s: _Seconds | None = None


class _Entry(Defaults, frozen=True, forbid_unknown_fields=True, kw_only=True):
    target: str = ""
    groups: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    defaults: dict[str, Any] = {}
    boxes: dict[str, dict[str, Any]] = {}


class Box(msgspec.Struct, frozen=True):
    """One daemon: its name, its address as the user wrote it, its groups and its settings."""

    name: str
    target: str
    groups: tuple[str, ...] = ()
    settings: Defaults = Defaults()

    def credentials(self, environment: Mapping[str, str] | None = None) -> Credentials:
        """Read the box's credentials from files and the environment. Raises InvalidInput if a file cannot be used."""
        from edged.client.credentials import Credentials

        given = os.environ if environment is None else environment
        own = self.settings
        found = {name: getattr(own, name) for name in (*_FILES, "server_name")} | {"token": ""}
        for together in (("ca",), ("certificate", "key"), ("token_file", "token"), ("server_name",)):
            if not any(found[name] for name in together):  # otherwise the environment adds nothing to this group
                found |= {name: given.get(f"EDGED_{name.upper()}", "").strip() for name in together}
        return Credentials.of(**found)


class Inventory(msgspec.Struct, frozen=True):
    """The boxes in the order of the file."""

    boxes: tuple[Box, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(sorted({group for box in self.boxes for group in box.groups}))

    def select(self, groups: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[Box, ...]:
        """Return the boxes that have one of the names or are in one of the groups; all boxes if neither is given.
        Raises InvalidInput for an unknown name or group."""
        for group in groups:
            _require_known(group, self.groups, "group")
        for name in names:
            _require_known(name, [box.name for box in self.boxes], "box")
        chosen = tuple(box for box in self.boxes if box.name in names or set(groups) & set(box.groups))
        return chosen if groups or names else self.boxes


def load(path: Path) -> Inventory:
    """Read an inventory. Raises ConfigError with one line if it is invalid or cannot be read."""
    try:
        plain = msgspec.toml.decode(read_regular(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"inventory {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"inventory {path} is not valid TOML: the file is not UTF-8; save it as UTF-8") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"inventory {path} is not valid TOML: {error}") from error
    try:
        return _parsed(plain, path.absolute().parent)
    except EdgedError as error:
        raise ConfigError(f"inventory {path}: {error}") from error


def _parsed(plain: object, folder: Path) -> Inventory:
    """Convert decoded TOML to an inventory. Relative paths start at `folder`. Raises ConfigError for invalid values."""
    file = _typed(plain, _File, "the file")
    defaults = _typed(file.defaults, Defaults, "[defaults]")
    boxes = tuple(_box(name, given, defaults, folder) for name, given in file.boxes.items())
    if not boxes:
        raise ConfigError('no box is defined; add a table [boxes.NAME] with target = "tls:HOST:PORT"')
    seen: dict[str, str] = {}
    for box in boxes:
        target = address.resolve(box.target)
        if (first := seen.setdefault(target, box.name)) != box.name:
            raise ConfigError(f"boxes {first} and {box.name} have the same target, {target}; remove one of these boxes")
    return Inventory(boxes)


def _box(name: str, given: dict[str, Any], defaults: Defaults, folder: Path) -> Box:
    where = f"[boxes.{name}]"
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"{name!r} is not a valid name of a box; use letters and digits")
    entry = _typed(given, _Entry, where)
    if not entry.target.strip():
        raise ConfigError(f"{where} has no key 'target'; set it to tls:HOST:PORT or unix:/PATH")
    try:
        address.resolve(entry.target)
    except InvalidInput as error:
        raise ConfigError(f"{where}: {error}") from error
    merged = {name: getattr(entry, name) or getattr(defaults, name) for name in Defaults.__struct_fields__}
    if entry.certificate or entry.key:  # certificate and key come both from the box or both from the defaults
        merged |= {"certificate": entry.certificate, "key": entry.key}
    for key, value in {"target": entry.target.strip(), **merged}.items():
        if isinstance(value, str) and not value.isprintable():
            raise ConfigError(f"{where}: the value of {key!r} has invisible characters, {value[:60]!r}; remove them")
    paths = {name: _place(folder, merged[name], f"{where}: the value of {name!r}") for name in _FILES if merged[name]}
    return Box(name, entry.target.strip(), entry.groups, Defaults(**{**merged, **paths}))


def _place(folder: Path, written: str, where: str) -> str:
    try:
        return str(folder / Path(written).expanduser())
    except RuntimeError as error:
        raise ConfigError(
            f"{where}, {written!r}, begins with the home folder of an unknown user; give another path"
        ) from error


_Known = TypeVar("_Known", bound=msgspec.Struct)


def _typed(plain: object, kind: type[_Known], where: str) -> _Known:
    try:
        return msgspec.convert(plain, ready(kind))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, kind.__struct_fields__, table='a table')}") from error


def _require_known(name: str, known: Sequence[str], what: str) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"existing names: {', '.join(known) or 'none'}"
    raise InvalidInput(f"the inventory has no {what} {name!r}; {meant}")


class Checked(msgspec.Struct, frozen=True):
    """A box, and how a command would connect to it. `how` is tls or plain, followed by certificate and token if they
    are used. `problem` is the reason why the box cannot be called, otherwise empty."""

    box: str
    target: str
    groups: tuple[str, ...]
    how: str = ""
    problem: str = ""


def check(
    file: Annotated[Path, typer.Argument(help="The inventory, a TOML file.")],
    json: common.Json = False,
) -> None:
    """Check an inventory with its certificates and tokens.

    No box is contacted.

    Exit status: 0 all boxes can be called, 1 some boxes cannot be called, 2 the file is invalid.
    """
    found = [_checked(box) for box in load(file).boxes]
    if json:
        common.print_json(msgspec.json.encode({"boxes": found}))
    else:
        common.show(_table(found))
    if any(each.problem for each in found):
        raise typer.Exit(common.FAILED)


def _checked(box: Box) -> Checked:
    from edged.client.credentials import is_secured, require_usable

    target = address.resolve(box.target)
    try:
        credentials = box.credentials()
        secured = is_secured(target, credentials)
        if secured:
            require_usable(credentials)
    except InvalidInput as error:
        return Checked(box.name, target, box.groups, problem=error.message)
    shown = [name for name in ("certificate", "token") if getattr(credentials, name)]
    if not secured:
        shown = [name for name in shown if name == "token"]
    how = "tls" if secured else "plain"
    return Checked(box.name, target, box.groups, f"{how}, {' and '.join(shown)}" if shown else how)


def _table(found: list[Checked]) -> Table:
    table = common.table("BOX", "TARGET", "GROUPS", "HOW", "PROBLEM")
    for each in found:
        table.add_row(each.box, each.target, ", ".join(each.groups), each.how, each.problem)
    return table
