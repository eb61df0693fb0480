"""A program for the package's Python: imports all that edged imports anywhere, also within functions.

Prints the modules that are not there. The package without extras has no runtime but ONNX Runtime.
"""

import ast
import importlib
from pathlib import Path

import edged

missing = set()


def load(module: str, name: str = "") -> None:
    try:
        if not hasattr(importlib.import_module(module), name or "__name__"):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        missing.add(error.name or module)


for path in sorted(Path(edged.__path__[0]).rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                load(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                load(node.module, alias.name)
print(*sorted(missing))
