"""`edged chat`: asks a language model, and prints the answer while the model generates it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from edged.api_types import ChatText
from edged.cli import common
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.decoding import ready
from edged.errors import InvalidInput
from edged.models.language import CONTEXT, OUTPUT_TOKENS

_MOST_TEXT = 1 << 20


def chat(
    model: Annotated[str, typer.Argument(help="The language model's name.")],
    question: Annotated[str, typer.Argument(help="The question; - or nothing reads it from standard input.")] = "-",
    picture: Annotated[
        list[Path] | None,
        typer.Option("--picture", metavar="FILE", help="A JPEG or PNG that the question is about; repeatable."),
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="How the model should answer.")] = "",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=0, help="The longest answer, in tokens; 0 is the model's own limit.")
    ] = 0,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="How random the answer is; 0 is not random.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option("--schema", metavar="FILE", help="A JSON schema that the answer follows.")
    ] = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Ask a language model; print the answer as it is generated. Ctrl-C ends the answer.

    edged chat qwen "Is a person at the gate?" --picture gate.jpg --schema person.json
    """
    text = question if question != "-" else sys.stdin.read(_MOST_TEXT)
    asked: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    asked.append({"role": "user", "content": text, "pictures": picture or []})
    form = _schema(schema) if schema is not None else None
    whole, last = "", ChatText("", "", model, 0, 0, 0)
    with targets.client() as client:
        for last in client.chat(
            model, asked, max_tokens=max_tokens, temperature=temperature, json_schema=form, timeout=targets.timeout
        ):
            whole += last.text
            if not json:
                sys.stdout.write(common.harmless(last.text))
                sys.stdout.flush()
    if json:
        common.print_json(msgspec.json.encode(msgspec.structs.replace(last, text=whole)))
    else:
        sys.stdout.write("\n")
        if last.finish_reason == "length":
            which = "--max-tokens" if max_tokens and last.tokens >= max_tokens else f"{OUTPUT_TOKENS} or {CONTEXT}"
            common.err.print(f"the answer is cut off after {last.tokens} tokens; to allow more, raise {which}")


def _schema(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ready(dict[str, object]))
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the JSON schema {path} cannot be used: {why}") from None
