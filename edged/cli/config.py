"""`edged config`: write a commented configuration file, check a file, show the effective values."""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged import paths
from edged.cli import common
from edged.errors import AlreadyExists, EdgedError, InvalidInput

if TYPE_CHECKING:
    from edged.config import Reading
    from edged.config.template import Row

_MODE = 0o640  # not readable by all: users of the daemon need not see its configuration
_GROUP = "edged"  # group of the service, which must be able to read the file if root writes it

_File = Annotated[
    Path | None, typer.Argument(help="The file; default: the file that edged serve or the service reads.")
]


def init(
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Print a configuration file with every key and its default.

    Comments explain each key and name its environment variable. With --out the text is written to a file that its owner
    and group can read. An existing file is not replaced unless --force is given.
    """
    from edged.config.template import template

    if out is None:
        typer.echo(template(), nl=False)
        return
    _write(out, template().encode(), force)
    common.err.print(f"written: {out}", soft_wrap=True)


def check(file: _File = None) -> None:
    """Check a configuration and print one line for each mistake.

    It also checks the environment variables, and whether your user may use the paths and addresses.

    Exit status: 0 no mistakes, 2 mistakes.
    """
    from edged.config.checking import Problem
    from edged.config.keys import dotted
    from edged.daemon.preflight import preflight

    reading, name = read_usual(file)
    problems = list(reading.problems)
    problems += [Problem(reading.origin(path), dotted(path), why) for path, why in preflight(reading.config)]
    _warn(reading)
    for problem in sorted(problems, key=lambda each: (each.origin.kind != "file", each.origin.line)):
        typer.echo(str(problem))
    if problems:
        raise typer.Exit(common.USAGE)
    typer.echo(f"{name}: ok")


def show(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The file; default: the file that edged serve or the service reads."),
    ] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value comes from.")] = False,
    json: common.Json = False,
) -> None:
    """Print every key with the value that a daemon would use.

    The values come from the file and from this command's environment.

    Options of edged serve override these values, but this command does not see the options.
    """
    from edged.config import template

    reading, name = read_usual(config)
    _warn(reading)
    reading.required()
    if json:
        common.print_json(msgspec.json.encode({"file": name, "keys": [_fields(row) for row in template.rows(reading)]}))
        return
    for line in template.lines(reading, origin):
        typer.echo(line)


def read_usual(file: Path | None = None) -> tuple[Reading, str]:
    """Read a configuration file and the environment. Return the result, and the file's name for messages. The default
    file is the one that edged serve or the service reads. If the default file is missing, read only the environment,
    and return a text that says so instead of the name."""
    from edged import config as configuration

    own = paths.default_config()
    usual = (own, paths.SERVICE_CONFIG) if own else (paths.SERVICE_CONFIG,)
    found = file or next((each for each in usual if os.path.lexists(each)), None)
    none = f"the defaults, because there is no {' or '.join(map(str, usual))}"
    return configuration.read(found, os.environ), str(found) if found else none


def _warn(reading: Reading) -> None:
    for warning in reading.warnings:
        typer.echo(f"edged: {warning}", err=True)


def _fields(row: Row) -> dict[str, object]:
    return {
        "key": row.key,
        "value": row.value,
        "origin": row.origin.kind,
        "name": row.origin.name,
        "line": row.origin.line or None,
        "variable": row.variable,
    }


def _write(path: Path, data: bytes, force: bool) -> None:
    """Write a file that its owner and group can read. Raises AlreadyExists if the file exists and `force` is not set,
    InvalidInput if the path exists but is not a regular file, EdgedError if the system refuses."""
    from edged.store import atomic

    try:
        path = path.resolve() if force else path  # if the path is a link, replace its target
        before = path.stat() if path.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):  # not /dev/null, which root could replace
            raise InvalidInput(f"{path} is not a regular file; give --out another name")
        if force:
            atomic.sweep(path.parent)
            atomic.write_file(path, data, _MODE)
        else:
            _write_new(path, data)
        if os.geteuid() == 0:
            # The service, which is not root, reads a new file through its group. A replaced file keeps its owner.
            owner, members = (before.st_uid, before.st_gid) if before is not None else (0, _group())
            os.chown(path, owner, members)
    except OSError as error:
        raise EdgedError(common.refused_by_system(error, path)) from error


def _write_new(path: Path, data: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} already exists; use --force to replace it") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), _MODE)  # regardless of the umask
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _group() -> int:
    try:
        return grp.getgrnam(_GROUP).gr_gid
    except KeyError:
        return os.getegid()
