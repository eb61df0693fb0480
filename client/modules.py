"""The modules of edged that `edged.client` imports, directly or not. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Only `edged stream` and a daemon's cameras use sinks. Drawing is included for the extra `draw`.
_WITHOUT = ("edged.client.sinks", "edged.library")
_ALSO = ("edged.vision.draw",)


def modules(project: Path) -> dict[str, Path]:
    """Return the paths of the modules and packages that the client needs, by name. `project`: the repository."""
    roots = [_name(path, project) for path in (project / "edged/client").rglob("*.py")]
    found: dict[str, Path] = {}
    waiting = [name for name in (*roots, *_ALSO) if not name.startswith(_WITHOUT)]
    while waiting:
        name = waiting.pop()
        path = _file(name, project)
        if name in found or path is None or name.startswith(_WITHOUT):
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(ast.parse(path.read_text()))]
    return found


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names that code imports, also within functions, but not under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _imports(node)


def _name(path: Path, project: Path) -> str:
    return ".".join(path.relative_to(project).with_suffix("").parts).removesuffix(".__init__")


def _file(name: str, project: Path) -> Path | None:
    """Return the file of a module of edged; None for other modules."""
    if name.partition(".")[0] != "edged":
        return None
    plain = project.joinpath(*name.split("."))
    return next((path for path in (plain / "__init__.py", plain.with_suffix(".py")) if path.is_file()), None)
