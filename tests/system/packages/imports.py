"""A program for the package's Python: imports all that edged imports anywhere, also within functions.

Prints the modules that are not there. The package without extras has no runtime but ONNX Runtime. What the user's own
Python runs (`export/frameworks/`), and imports for type checkers, do not count.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import edged

missing = set()


def load(module: str, name: str = "") -> None:
    try:
        if not hasattr(importlib.import_module(module), name or "__name__"):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        missing.add(error.name or module)


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module without those below `if TYPE_CHECKING`."""
    yield node
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if is_for_types else ast.iter_child_nodes(node):
        yield from at_run_time(child)


home = Path(edged.__path__[0])
for path in sorted(set(home.rglob("*.py")) - set(home.glob("export/frameworks/*"))):
    for node in at_run_time(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                load(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                load(node.module, alias.name)
print(*sorted(missing))
