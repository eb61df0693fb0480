"""Manual pages and shell completions, made from the command line's own help.

`python packaging/deb/manpages.py FOLDER` writes them below a folder, as /usr/share has them.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer._completion_shared import get_completion_script

# The path of each shell's completion file, below /usr/share.
_COMPLETIONS = {
    "bash": "bash-completion/completions/edged",
    "zsh": "zsh/vendor-completions/_edged",
    "fish": "fish/vendor_completions.d/edged.fish",
}
_VARIABLE = "_EDGED_COMPLETE"


def pages(version: str, date: int) -> dict[str, str]:
    """Return the pages by name, such as `edged-models-add`. `date` in seconds since 1970."""
    from edged.cli.app import app

    day = datetime.datetime.fromtimestamp(date, datetime.timezone.utc).strftime("%Y-%m-%d")
    return {"-".join(_words(context)): _page(context, version, day) for context in _contexts(app)}


def completions() -> dict[str, str]:
    """Return the completion scripts by their paths below /usr/share."""
    scripts = {
        path: get_completion_script(prog_name="edged", complete_var=_VARIABLE, shell=shell) + "\n"
        for shell, path in _COMPLETIONS.items()
    }
    # zsh runs the file at the first completion. Without this line it would only define the function.
    scripts[_COMPLETIONS["zsh"]] += '_edged_completion "$@"\n'
    return scripts


def _contexts(app: typer.Typer) -> Iterator[typer.Context]:
    """Yield a context for each command and group, parents first."""
    root = typer.main.get_command(app)
    waiting = [typer.Context(root, info_name="edged")]
    while waiting:
        context = waiting.pop(0)
        yield context
        waiting += [typer.Context(command, parent=context, info_name=name) for name, command in _children(context)]


def _children(context: typer.Context) -> list[tuple[str, typer.core.TyperCommand]]:
    """Return the visible commands of a group by name."""
    names = context.command.list_commands(context) if hasattr(context.command, "list_commands") else []
    found = [(name, context.command.get_command(context, name)) for name in names]
    return [(name, command) for name, command in found if command is not None and not command.hidden]


def _words(context: typer.Context) -> list[str]:
    return context.command_path.split()


def _page(context: typer.Context, version: str, day: str) -> str:
    """Return one page (man(7))."""
    command, words = context.command, _words(context)
    name = "-".join(words)
    usage = " ".join(command.collect_usage_pieces(context))
    # Long setting names cannot be broken: without the second line, justified text would have gaps and wrong hyphens.
    lines = [f'.TH "{name.upper()}" 1 "{day}" "edged {version}" "edged"', ".ad l\n.nh"]
    lines += [".SH NAME", f"{escape(name)} \\- {escape(command.get_short_help_str(200).rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {escape(' '.join(words))}", escape(usage)]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records: dict[str, list[tuple[str, str]]] = {"ARGUMENTS": [], "OPTIONS": []}
    for param in command.get_params(context):
        if record := param.get_help_record(context):
            records["OPTIONS" if param.param_type_name == "option" else "ARGUMENTS"].append(record)
    for title, entries in records.items():
        lines += _list(title, entries)
    children = _children(context)
    lines += _list("COMMANDS", [(child, below.get_short_help_str(200)) for child, below in children])
    lines += _example(command.epilog or "")
    others = ["-".join([*words, child]) for child, _ in children] or ["-".join(words[:-1]) or "edged"]
    lines += [".SH SEE ALSO", ",\n".join(f".BR {escape(other)} (1)" for other in others)]
    return "\n".join(lines) + "\n"


def _list(title: str, entries: list[tuple[str, str]]) -> list[str]:
    if not entries:
        return []
    lines = [f".SH {title}"]
    for name, text in entries:
        lines += [".TP", f".B {escape(name)}", escape(" ".join(text.split())) or "\\&"]
    return lines


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help; one that begins with \\b keeps its lines."""
    lines = []
    for paragraph in text.strip().split("\n\n"):
        kept = paragraph.startswith("\b")
        lines += [".PP", *([".nf"] if kept else [])]
        lines += [escape(line.strip() if not kept else line) for line in paragraph.strip("\b\n").splitlines()]
        lines += [".fi"] if kept else []
    return lines[1:]


def _example(epilog: str) -> list[str]:
    lines = [line.partition(":")[2].strip() for line in epilog.splitlines() if ":" in line]
    if len(lines) != 2:
        return []
    example, page = lines
    return [".SH EXAMPLE", ".nf", escape(example), ".fi", ".PP", escape(f"More: {page}")]


def escape(text: str) -> str:
    """Return text that roff prints unchanged. Escapes backslashes, hyphens, and dots at the beginning of a line.

    Long lists without spaces may break after a comma.
    """
    text = re.sub(r",(?=\S)", r",\\:", text.replace("\\", "\\e").replace("-", "\\-").replace("\b", ""))
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from edged.version import __version__

    out = Path(sys.argv[1])
    made = {f"man/man1/{name}.1": page for name, page in pages(__version__, 0).items()} | completions()
    for name, text in made.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
