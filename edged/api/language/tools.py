"""Calls of tools in an answer: the schema that forces a call, and how calls are found in text. Pure.

Models write a call as JSON with a name and arguments, bare or between tags such as <tool_call>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

_OPENINGS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_TAGS = re.compile(r"</?tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|^```(?:json)?|```$")
_DEEPEST = 64
_ARGUMENTS = ("arguments", "parameters")


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool; `arguments` is JSON."""

    name: str
    arguments: str


def schema_of(tools: Sequence[dict[str, Any]], name: str = "") -> dict[str, Any]:
    """Return the JSON schema of a call of any of the tools; with `name`, of the tool with this name."""
    chosen = [tool["function"] for tool in tools if name in ("", tool["function"]["name"])]
    # The parameters of each tool are a separate schema, whose references begin at the root of that schema.
    parameters = {
        f"tool{number}": _moved(each.get("parameters") or {"type": "object"}, f"#/$defs/tool{number}")
        for number, each in enumerate(chosen)
    }
    calls = [
        {
            "type": "object",
            "properties": {"name": {"enum": [each["name"]]}, "arguments": {"$ref": f"#/$defs/{place}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, each in zip(parameters, chosen, strict=True)
    ]
    return {"$defs": parameters, **(calls[0] if len(calls) == 1 else {"anyOf": calls})}


def _moved(value: Any, root: str, depth: int = 0) -> Any:
    """Return a copy of a schema that can become the part `root` of another schema. In references of the copy, `root`
    takes the place of `#`."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_moved(each, root, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _moved(each, root, depth + 1) for key, each in value.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = root + reference[1:]
    return found


def find_calls(text: str, names: Sequence[str]) -> list[ToolCall]:
    """Return the calls of tools in a text. Every part of the text must be a call of a tool with one of these names;
    otherwise the list is empty."""
    rest = _TAGS.sub(" ", text.strip()).strip()
    decoder, found = json.JSONDecoder(), list[ToolCall]()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        for each in value if isinstance(value, list) else [value]:
            call = _call(each, names)
            if call is None:
                return []
            found.append(call)
        rest = rest[end:].lstrip(" \n\t,;")
    return found


def _call(value: Any, names: Sequence[str]) -> ToolCall | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    return ToolCall(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))


class HeldText:
    """Holds back the text of an answer while it may be a call of a tool. Passes on other text at once."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text = False

    def take(self, text: str) -> str:
        """Add new text, and return the text that can be sent now."""
        if self._is_text:
            return text
        self._held += text
        begin = self._held.lstrip()
        if not begin or begin[0] in "{[`" or any(each.startswith(begin[: len(each)]) for each in _OPENINGS):
            return ""
        self._is_text = True
        held, self._held = self._held, ""
        return held

    def rest(self) -> str:
        """Return the text that is held back."""
        held, self._held = self._held, ""
        return held
