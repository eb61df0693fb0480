"""A parser for enough PromQL to compare expressions with a list of metrics: names, labels, functions, groupings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<range>\[[^\]]+\])|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+|[smhdwy])?)
    |(?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<sign>[=!]~|[=!<>]=|[-+*/%^<>=(){},])""",
    re.VERBOSE,
)
_GROUPING = ("by", "without", "on", "ignoring", "group_left", "group_right")
_AGGREGATIONS = ("sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev", "group")
_FUNCTIONS = ("rate", "increase", "changes", "histogram_quantile", "time", "vector", "resets", "absent", "delta", "abs")
_KEYWORDS = (*_GROUPING, *_AGGREGATIONS, *_FUNCTIONS, "and", "or", "unless", "offset", "bool")


@dataclass
class Selector:
    """One metric in an expression: its label matchers, the calls around it, and whether it has a range."""

    name: str
    matchers: dict[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    has_range: bool = False


@dataclass
class Expression:
    """A parsed expression. `groupings`: each grouping keyword with its labels. `result`: labels of the first `by`."""

    selectors: list[Selector]
    groupings: list[tuple[str, tuple[str, ...]]]
    result: tuple[str, ...] | None


def parse(text: str) -> Expression:
    """Parse an expression. ValueError for invalid PromQL, and for valid PromQL that this parser does not know."""
    tokens = list(_tokens(text))
    selectors: list[Selector] = []
    groupings: list[tuple[str, tuple[str, ...]]] = []
    calls: list[str] = []
    outermost: tuple[str, ...] | None = None
    at, pending = 0, ""
    while at < len(tokens):
        kind, word = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind == "word" and word in _GROUPING:
            labels, at = _labels(tokens, at)
            groupings.append((word, labels))
            if word == "by" and outermost is None:
                outermost = labels
        elif kind == "word" and word in _KEYWORDS:
            pending = word if following in ("(", "by", "without") else ""
            if word not in _AGGREGATIONS and following != "(" and word in _FUNCTIONS:
                raise ValueError(f"{word} is not called")
        elif kind == "word" and following == "(":
            raise ValueError(f"{word} is not a known function")
        elif kind == "word":
            selector = Selector(word, inside=tuple(calls))
            if following == "{":
                selector.matchers, at = _matchers(tokens, at)
            if at < len(tokens) and tokens[at][0] == "range":
                selector.has_range, at = True, at + 1
            selectors.append(selector)
        elif word == "(":
            calls.append(pending)
            pending = ""
        elif word == ")":
            calls.pop()
    if calls:
        raise ValueError("a bracket is not closed")
    return Expression(selectors, groupings, outermost)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    text = text.replace("$__rate_interval", "5m")
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ValueError(f"cannot parse from here: {text[place : place + 20]}")
        place = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found[0]


def _labels(tokens: list[tuple[str, str]], at: int) -> tuple[tuple[str, ...], int]:
    if at >= len(tokens) or tokens[at][1] != "(":
        raise ValueError("labels are expected in brackets")
    end = next(place for place in range(at, len(tokens)) if tokens[place][1] == ")")
    return tuple(word for kind, word in tokens[at + 1 : end] if kind == "word"), end + 1


def _matchers(tokens: list[tuple[str, str]], at: int) -> tuple[dict[str, str], int]:
    end = next(place for place in range(at, len(tokens)) if tokens[place][1] == "}")
    found = {}
    inner = [token for token in tokens[at + 1 : end] if token[1] != ","]
    if len(inner) % 3:
        raise ValueError("matchers are NAME OPERATOR TEXT")
    for place in range(0, len(inner), 3):
        (_, name), (_, operator), (kind, value) = inner[place : place + 3]
        if operator not in ("=", "!=", "=~", "!~") or kind != "text":
            raise ValueError(f"{name} {operator} {value} is not a matcher")
        found[name] = value[1:-1]
    return found, end + 1
