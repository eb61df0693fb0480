"""Everything in README.md and docs/ that a reader should type or write: commands, programs and TOML, with its place.

A fenced block, or lines indented by four, is one block. A block with a line like `import x` or `a = b(c)` is a
program; one with `[table]` or `key = value` is TOML. In a block that begins with a command, each line is a command, or
only those with a leading `$` if there are any. Everything else is "other".
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["command", "python", "toml", "other"]

_PROGRAM = re.compile(r"^(import |from [\w.]+ import |\w+ = [\w.]+\(|with \w+|numpy\.)", re.MULTILINE)
_TOML = re.compile(r"""^(\[[\w."-]+\]|["\w.]+ = \S)""", re.MULTILINE)
_YAML = re.compile(r"^[\w-]+:( |$)", re.MULTILINE)
_COMMAND = re.compile(
    r"(sudo |edged |curl |head |make |systemctl |rsync |cp |chown |docker |pip |journalctl |jetson/|\.venv/|protoc )"
)
_NOTE = re.compile(r"\s+# .*$|\s{3,}\S.*$")  # a remark after a command


@dataclass(frozen=True)
class Snippet:
    """One thing to run or to read. The `text` of a command has no remarks."""

    place: str
    kind: Kind
    text: str


def of_file(path: Path, root: Path) -> Iterator[Snippet]:
    """Yield the snippets of a Markdown file, in order."""
    for number, language, text in _blocks(path.read_text()):
        yield from _snippets(f"{path.relative_to(root)}:{number}", language, text)


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, language and text of each block. An empty line does not end an indented block."""
    language: str | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.startswith("```"):
            if language is None:
                if lines:
                    yield start, "", textwrap.dedent("\n".join(lines)).strip("\n")
                language, lines, start = line[3:].strip() or "text", [], number + 1
            else:
                yield start, language, "\n".join(lines)
                language, lines = None, []
        elif language is not None:
            lines.append(line)
        elif line.startswith("    ") and line.strip():
            start = start if lines else number
            lines.append(line)
        elif lines and (line.strip() or number > text.count("\n")):
            yield start, "", textwrap.dedent("\n".join(lines)).strip("\n")
            lines = []
        elif lines:
            lines.append("")


def _snippets(place: str, language: str, text: str) -> Iterator[Snippet]:
    is_command = not language and _COMMAND.match(text.removeprefix("$ "))
    is_table = not language and not is_command and (_TOML.search(text) or _YAML.search(text))
    if language == "python" or (not language and _PROGRAM.search(text)):
        yield Snippet(place, "python", text)
    elif language == "toml" or is_table:
        for part in re.split(r"\n\n(?=# )|\n(?=# \S+\.\w+ )", text):
            yield Snippet(place, "other" if _YAML.search(part) else "toml", part)
    else:
        shown = [line[2:] for line in text.split("\n") if line.startswith("$ ")]
        if shown or _COMMAND.match(text):
            yield from _commands(place, shown or text.split("\n"))
        else:
            yield Snippet(place, "other", text)


def _commands(place: str, lines: Iterable[str]) -> Iterator[Snippet]:
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).split("\n"):
        if line.strip() and not line.startswith("#"):
            yield Snippet(place, "command", _NOTE.sub("", line).strip())
