"""Shared by all commands: options, output, exit status."""

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
TARGET_HELP = f"{_DAEMON} Repeatable, for several at once."
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, errors too.")]
Score = Annotated[
    float | None, typer.Option("--score", min=0.0, max=1.0, help="Leave out detections below this score, 0 to 1.")
]

FAILED, USAGE = 1, 2
_INTERRUPTED = 128 + signal.SIGINT
_BROKEN_PIPE = 128 + signal.SIGPIPE
_UNFOLDED = 1 << 20  # columns: wider than anything printed


@dataclass
class RootOptions:
    """Options that were given before the command, as in `edged --target tls:dock status`."""

    targets: tuple[str, ...] = ()
    json: bool = False

    def apply(self, command: dict[str, Any]) -> None:
        """Fill in options of a command that were not given after it. InvalidInput if it has no such option."""
        if self.json:
            if not isinstance(command.get("json"), bool):
                raise InvalidInput("--json does not apply to this command")
            command["json"] = True
        if self.targets:
            if "target" not in command:
                raise InvalidInput("--target does not apply to this command")
            is_repeatable = "inventory" in command
            if len(self.targets) > 1 and not is_repeatable:
                raise InvalidInput("this command talks to one daemon; give one --target")
            command["target"] = command["target"] or (list(self.targets) if is_repeatable else self.targets[0])


root_options = RootOptions()


# Control characters and line separators, except tab and line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def harmless(text: str) -> str:
    """Escape control characters, which could move the cursor; line feeds stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class DataConsole(Console):
    """A console that prints texts literally, also in tables: no markup, no emoji, no control characters."""

    def on_broken_pipe(self) -> None:
        """Re-raise the BrokenPipeError that is handled: `command` sets the exit status."""
        raise

    def render_str(self, text: str, **options: Any) -> Text:
        """Every plain text passes here before it is measured and printed."""
        return super().render_str(harmless(text), **options | {"emoji": False, "markup": False, "highlight": False})


out = DataConsole()
err = DataConsole(stderr=True)


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Decorate a command so that it ends as a shell expects.

    An EdgedError is one line on stderr (with --json also JSON on stdout) and status 1, or 2 if the arguments, the
    settings or the model are wrong. An OSError is one line and status 1. Ctrl-C is 130 and SIGTERM 143, after cleanup.
    A closed pipe prints nothing.
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
            if error.filename is None:  # such as standard output on a full disk
                _discard_output()
            say(f"edged: {refused_by_system(error)}")
            raise typer.Exit(FAILED) from None

    return wrapped


def _unwind_on_sigterm() -> None:
    """SIGTERM and SIGHUP end a command as an error does: children are stopped and folders removed.

    Signals that are already handled or ignored (nohup) stay so; a command can set other handlers later.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # in a test
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def refused_by_system(error: OSError, what: object = None) -> str:
    """Return a line with the name and the reason of an error of the system."""
    name, why = what or error.filename, error.strerror or str(error) or type(error).__name__
    return f"cannot use {os.fsdecode(name) if isinstance(name, bytes) else name}: {why}" if name else why


def show(renderable: RenderableType) -> None:
    """Print a table or text on standard output; without a terminal as wide as it is, so that nothing is cut."""
    if out.is_terminal:
        out.print(renderable, soft_wrap=isinstance(renderable, str))
        return
    plain = DataConsole(file=io.StringIO(), width=_UNFOLDED, color_system=None)
    with plain.capture() as captured:
        plain.print(renderable)
    for line in captured.get().removesuffix("\n").split("\n"):
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()  # a reader of the pipe sees each line at once


def table(*headings: str) -> Table:
    """Return an empty table without lines."""
    return Table(*headings, box=None, pad_edge=False)


def fact_table(facts: Mapping[str, str]) -> Table:
    """Return names and values in two columns without headings."""
    found = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        found.add_row(name, value)
    return found


def say(line: str) -> None:
    """Print a line on standard error, with control characters escaped: it may quote a box."""
    typer.echo(harmless(line), err=True)


@contextlib.contextmanager
def working(on: str, console: Console = err) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal while something takes its time; nothing in a log or pipe. Yield a function that
    changes its text. Lines that are printed meanwhile go above it if they go to the same `console`."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        shown = progress.add_task(on)
        yield lambda text: progress.update(shown, description=text)


def print_json(encoded: bytes) -> None:
    """Print one line of JSON and flush: the reader may be waiting."""
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def _print_error(error: EdgedError) -> None:
    try:
        print_json(msgspec.json.encode({"error": error.message, "code": error.code.value}))
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    """Discard what is buffered, which the interpreter would complain about at exit."""
    with contextlib.suppress(OSError, ValueError):  # a test's standard output is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
