"""Which path means what: the one table of the addresses, with the methods that each takes. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from edged.api.http.exchange import Answer, failed
from edged.errors import ErrorCode

_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")

# {name} is one part of a path. The first that fits counts.
_TABLE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("v2", _GET, "server"),
    ("v2/health/live", _GET, "live"),
    ("v2/health/ready", _GET, "ready"),
    ("v2/models/stats", _GET, "statistics"),
    ("v2/models/{model}", _GET, "model"),
    ("v2/models/{model}/ready", _GET, "model_ready"),
    ("v2/models/{model}/config", _GET, "config"),
    ("v2/models/{model}/stats", _GET, "statistics"),
    ("v2/models/{model}/infer", _POST, "infer"),
    ("v2/models/{model}/versions/{version}", _GET, "model"),
    ("v2/models/{model}/versions/{version}/ready", _GET, "model_ready"),
    ("v2/models/{model}/versions/{version}/config", _GET, "config"),
    ("v2/models/{model}/versions/{version}/stats", _GET, "statistics"),
    ("v2/models/{model}/versions/{version}/infer", _POST, "infer"),
    ("v2/models/{model}/trace/setting", _BOTH, "trace"),
    ("v2/trace/setting", _BOTH, "trace"),
    ("v2/logging", _BOTH, "logging"),
    ("v2/repository/index", _POST, "index"),
    ("v2/repository/{repository}/index", _POST, "index"),
    ("v2/repository/models/{model}/load", _POST, "load"),
    ("v2/repository/models/{model}/unload", _POST, "unload"),
    ("v2/repository/{repository}/models/{model}/load", _POST, "load"),
    ("v2/repository/{repository}/models/{model}/unload", _POST, "unload"),
    ("v2/systemsharedmemory/status", _GET, "system_regions"),
    ("v2/systemsharedmemory/region/{region}/status", _GET, "system_regions"),
    ("v2/systemsharedmemory/region/{region}/register", _POST, "register_system"),
    ("v2/systemsharedmemory/region/{region}/unregister", _POST, "unregister_system"),
    ("v2/systemsharedmemory/unregister", _POST, "unregister_system"),
    ("v2/cudasharedmemory/status", _GET, "cuda_regions"),
    ("v2/cudasharedmemory/region/{region}/status", _GET, "cuda_regions"),
    ("v2/cudasharedmemory/region/{region}/register", _POST, "register_cuda"),
    ("v2/cudasharedmemory/region/{region}/unregister", _POST, "unregister_cuda"),
    ("v2/cudasharedmemory/unregister", _POST, "unregister_cuda"),
    ("edged/v1/detect", _POST, "detect"),
    ("edged/v1/detect/{model}", _POST, "detect"),
)
_ROUTES = tuple((tuple(path.split("/")), methods, what) for path, methods, what in _TABLE)


class Route(NamedTuple):
    """What is asked for, and the parts of the path that say of what: model, version, repository, region."""

    what: str
    names: dict[str, str]


def find(method: str, path: str) -> Route | Answer:
    """The route of a request, or the answer to one that goes nowhere. HEAD counts as GET."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for pattern, methods, what in _ROUTES:
        names = _match(pattern, parts)
        if names is None:
            continue
        allowed = (("allow", ", ".join(_said(methods))),)
        if method == "OPTIONS":
            return Answer(HTTPStatus.NO_CONTENT, headers=allowed)
        if method not in _said(methods):
            message = f"{method[:20]} is not allowed here; use {methods[-1]}"
            return failed(HTTPStatus.METHOD_NOT_ALLOWED, ErrorCode.UNSUPPORTED, message, allowed)
        return Route(what, names)
    message = f"there is nothing at {path[:100]!r}; see docs/http.md for what there is"
    return failed(HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, message)


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names if all(names.values()) else None


def _said(methods: tuple[str, ...]) -> tuple[str, ...]:
    return (*(("HEAD",) if "GET" in methods else ()), *methods, "OPTIONS")
