"""JSON schemas as regular expressions, so that answers are compact and numbers end. Pure.

A runtime that follows a schema by itself allows spaces without end between the parts, and digits without end, which a
small model may write until its tokens are used up. Schemas that no regular expression can describe are left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_SPECIAL: Final = frozenset(r"\.^$|?*+()[]{}/-")
_CHARACTER: Final = r'([^"\\\x00-\x1F\x7F]|\\["\\/bfnrt])'
_NATURAL: Final = "(0|[1-9][0-9]{0,9})"
_INTEGER: Final = "(0|-?[1-9][0-9]{0,9})"
_NUMBER: Final = rf"-?{_NATURAL}(\.[0-9]{{1,6}})?"
_DEEPEST: Final = 8
_MOST_NUMBERS: Final = 200  # of a range that is written out
_LONGEST: Final = 8192  # characters of an expression
_MOST_REPEATED: Final = 256  # larger counts make expressions that take long to prepare
# Words that change which values are valid, and that are not translated.
_OTHERS: Final = frozenset(
    ("allOf", "not", "if", "dependentRequired", "dependentSchemas", "patternProperties", "prefixItems", "contains")
) | frozenset(
    ("uniqueItems", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "minProperties")
)


class _Unknown(Exception):
    """The schema cannot be described."""


def regex_of(schema: Mapping[str, Any]) -> str | None:
    """Return an expression whose texts are valid for a schema; None if there is none. Not every valid text matches."""
    try:
        found = _value(schema, schema, 0)
    except _Unknown:
        return None
    return found if len(found) <= _LONGEST else None


def _value(schema: Any, root: Mapping[str, Any], depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > _DEEPEST or _OTHERS & schema.keys():
        raise _Unknown
    if "$ref" in schema:
        return _value(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return _literal(schema["const"])
    if "enum" in schema:
        return _any(_literal(each) for each in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _any(_value(each, root, depth + 1) for each in schema[key])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _any(_value({**schema, "type": each}, root, depth + 1) for each in kind)
    match kind:
        case "object":
            return _object(schema, root, depth)
        case "array":
            return _array(schema, root, depth)
        case "string":
            return f'"{_CHARACTER}{_count(schema, "minLength", "maxLength")}"'
        case "integer":
            return _integer(schema)
        case "number":
            if "minimum" in schema or "maximum" in schema:
                raise _Unknown
            return _NUMBER
        case "boolean":
            return "(true|false)"
        case "null":
            return "null"
        case _:
            raise _Unknown


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not properties or any(name not in properties for name in required):
        raise _Unknown
    parts = {name: f"{_literal(name)}: {_value(each, root, depth + 1)}" for name, each in properties.items()}
    needed = [parts[name] for name in parts if name in required]
    others = [parts[name] for name in parts if name not in required]
    if needed:
        return r"\{" + ", ".join(needed) + "".join(f"(, {each})?" for each in others) + r"\}"
    # The first one that is there has no comma before it.
    starts = (each + "".join(f"(, {later})?" for later in others[i + 1 :]) for i, each in enumerate(others))
    return r"\{(" + "|".join(starts) + r")?\}"


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    item = _value(schema.get("items"), root, depth + 1)
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if not isinstance(least, int) or not isinstance(most, int | None) or (most or 0) > _MOST_REPEATED:
        raise _Unknown
    if most == 0:
        return r"\[\]"
    end = "" if most is None else most - 1
    rest = f"(, {item}){{{max(least - 1, 0)},{end}}}" if least > 1 or most is not None else f"(, {item})*"
    return rf"\[{item}{rest}\]" if least else rf"\[({item}{rest})?\]"


def _integer(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return _INTEGER
    if low == 0 and high is None:
        return _NATURAL
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= high - low < _MOST_NUMBERS:
        raise _Unknown
    return _any(_literal(each) for each in range(low, high + 1))


def _count(schema: Mapping[str, Any], low: str, high: str) -> str:
    least, most = schema.get(low, 0), schema.get(high)
    if not isinstance(least, int) or not isinstance(most, int | None) or max(least, most or 0) > _MOST_REPEATED:
        raise _Unknown
    if most is None:
        return "*" if not least else f"{{{least},}}"
    return f"{{{least},{most}}}"


def _any(found: Any) -> str:
    return f"({'|'.join(found)})"


def _literal(value: Any) -> str:
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in json.dumps(value, ensure_ascii=False))


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    found: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _Unknown
    for name in filter(None, reference[1:].split("/")):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
