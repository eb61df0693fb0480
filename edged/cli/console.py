"""Where commands print: what comes from models, cameras and other boxes is data, whatever is in it."""

from __future__ import annotations

import re

from rich.console import Console, HighlighterType, JustifyMethod, OverflowMethod
from rich.style import Style
from rich.text import Text

# All that a terminal may take for a command, or for the end of a line that is none; the ends of lines are left.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def harmless(text: str) -> str:
    """A text that moves no cursor, with control characters written out; its lines stay lines."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class DataConsole(Console):
    """A console whose texts are neither markup nor emoji nor commands to the terminal, also those in tables."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled. It goes on to `command`, which sets the exit status."""
        raise

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Every plain text that is printed or measured passes here, before it is laid out."""
        return super().render_str(
            harmless(text),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=False,
            markup=False,
            highlight=False,
            highlighter=highlighter,
        )
