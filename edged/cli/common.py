"""Options, output and exit status that all commands share."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, ParamSpec

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from edged.errors import EdgedError, InvalidInput

Parameters = ParamSpec("Parameters")

_DAEMON = "The daemon: unix:/PATH, HOST:PORT or tls:HOST:PORT; default: EDGED_TARGET, or its default socket."
Target = Annotated[str | None, typer.Option("--target", "-t", metavar="ADDRESS", help=_DAEMON)]
TARGET_HELP = f"{_DAEMON} Repeat it to call several daemons at once."
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, also for errors.")]
Score = Annotated[
    float | None, typer.Option("--score", min=0.0, max=1.0, help="Leave out detections below this score, 0 to 1.")
]

FAILED, USAGE = 1, 2
_INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + signal.SIGPIPE
_UNFOLDED = 1 << 20  # columns: wider than anything printed


@dataclass
class RootOptions:
    """Options before the command, as in `edged --target tls:dock status`."""

    targets: tuple[str, ...] = ()
    json: bool = False

    def apply(self, command: dict[str, Any]) -> None:
        """Add these options to a command's arguments. Options after the command take precedence. Raises InvalidInput if
        the command has no such option, or if several targets are given and the command accepts only one."""
        if self.json:
            if not isinstance(command.get("json"), bool):
                raise InvalidInput("--json does not apply to this command")
            command["json"] = True
        if self.targets:
            if "target" not in command:
                raise InvalidInput("--target does not apply to this command")
            is_repeatable = "inventory" in command
            if len(self.targets) > 1 and not is_repeatable:
                raise InvalidInput("this command can call only one daemon, but several are given; give one --target")
            command["target"] = command["target"] or (list(self.targets) if is_repeatable else self.targets[0])


root_options = RootOptions()


# Control characters and line separators, except tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def harmless(text: str) -> str:
    """Escape control characters, which could move the cursor. Line feeds and tabs stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class DataConsole(Console):
    """A console that prints texts literally, also in tables: no markup, no emoji codes, escaped control characters."""

    def on_broken_pipe(self) -> None:
        """Re-raise the current BrokenPipeError; the decorator `command` sets the exit status."""
        raise

    def render_str(self, text: str, **options: Any) -> Text:
        """Return `text` with control characters escaped and without markup. rich calls this method for each plain text
        before it measures and prints the text."""
        return super().render_str(harmless(text), **options | {"emoji": False, "markup": False, "highlight": False})


out = DataConsole()
err = DataConsole(stderr=True)


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Decorate a command so that it prints errors and exits as a shell expects.

    An EdgedError prints one line on stderr, and with --json also JSON on stdout. The status is 2 if the arguments, the
    settings or the model are wrong, otherwise 1. An OSError prints one line; the status is 1. After Ctrl-C, SIGTERM or
    SIGHUP the command first cleans up; the status is then 130, 143 or 129. If the reader of standard output has closed
    the pipe, no error is printed; the status is 141.
    """

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        _unwind_on_sigterm()
        try:
            root_options.apply(kwargs)
            function(*args, **kwargs)
            sys.stdout.flush()  # a closed pipe fails here, not while the interpreter exits
        except EdgedError as error:
            say(f"edged: {error.message}")
            if kwargs.get("json") is True:
                _print_error(error)
            raise typer.Exit(USAGE if isinstance(error, InvalidInput) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(_BROKEN_PIPE) from None
        except OSError as error:
            if error.filename is None:  # an error without a file, such as that of standard output on a full disk
                _discard_output()
            say(f"edged: {refused_by_system(error)}")
            raise typer.Exit(FAILED) from None

    return wrapped


def parse_region(text: str | None) -> tuple[int, int, int, int] | None:
    """Parse `X,Y,W,H`, in pixels; return None for None. Raises InvalidInput for any other text."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(f"{text!r} is not a region; give x,y,width,height in pixels, such as 0,200,640,480")
    x, y, width, height = map(int, parts)
    return x, y, width, height


_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Parse a duration such as `90s`, `30min`, `24h` or `7d` into seconds. Raises InvalidInput for any other text."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)", text.strip())
    if found is None or found[2] not in _UNITS:
        raise InvalidInput(f"{text[:40]!r} is not a duration; give a number and a unit, such as 90s, 30min, 24h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def _unwind_on_sigterm() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that the command stops its children and removes temporary folders.

    This function does not change a signal that is already handled, or ignored (nohup). A command can set other handlers
    later.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # in a test
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def refused_by_system(error: OSError, what: object = None) -> str:
    """Return one line about a system error: the file or folder that cannot be used, and the reason. The file or folder
    is `what`, or by default the error's file. If both are missing, the line has only the reason."""
    name, why = what or error.filename, error.strerror or str(error) or type(error).__name__
    return f"cannot use {os.fsdecode(name) if isinstance(name, bytes) else name}: {why}" if name else why


def show(renderable: RenderableType) -> None:
    """Print a table or text on standard output. Without a terminal, no line is cut or wrapped."""
    if out.is_terminal:
        out.print(renderable, soft_wrap=isinstance(renderable, str))
        return
    plain = DataConsole(file=io.StringIO(), width=_UNFOLDED, color_system=None)
    with plain.capture() as captured:
        plain.print(renderable)
    for line in captured.get().removesuffix("\n").split("\n"):
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()  # the pipe's reader gets the text at once


def table(*headings: str) -> Table:
    """Return a table with these headings, without rows and without borders."""
    return Table(*headings, box=None, pad_edge=False)


def fact_table(facts: Mapping[str, str]) -> Table:
    """Return a table with names and values in two columns, without headings."""
    found = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        found.add_row(name, value)
    return found


def say(line: str) -> None:
    """Print a line on standard error. Control characters are escaped, since the line may contain text from a box."""
    typer.echo(harmless(line), err=True)


@contextlib.contextmanager
def working(on: str, console: Console = err) -> Iterator[Callable[[str], None]]:
    """Show a spinner while the block runs, if `console` is a terminal. Yield a function that changes the spinner's
    text. Lines that are printed to the same `console` meanwhile appear above the spinner."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        shown = progress.add_task(on)
        yield lambda text: progress.update(shown, description=text)


def print_json(encoded: bytes) -> None:
    """Print one line of JSON and flush it, since the reader may be waiting."""
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def _print_error(error: EdgedError) -> None:
    try:
        print_json(msgspec.json.encode({"error": error.message, "code": error.code.value}))
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    """Discard buffered output, so that the interpreter does not report an error at exit."""
    with contextlib.suppress(OSError, ValueError):  # in a test, standard output is not a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
