"""The package `edged-client` (client/): its modules, its requirements, and use without the optional ones."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edged
from edged import packages

ROOT, SOURCES = Path(__file__).parents[2], Path(edged.__file__).parents[1]


def requirements(folder: Path) -> set[str]:
    """Return all requirements in a pyproject.toml, including those of extras."""
    return set(re.findall(r'"([\w-]+>=[^"]+)"', (folder / "pyproject.toml").read_text()))


@pytest.fixture(scope="module")
def build() -> Any:
    spec = importlib.util.spec_from_file_location("client_modules", ROOT / "client/modules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_client_requirements_are_a_subset_of_edgeds() -> None:
    assert requirements(ROOT / "client") - {"hatchling>=1.27"} <= requirements(ROOT)


def test_client_optional_packages_are_extras() -> None:
    for requirement in packages.NOT_IN_CLIENT.values():
        assert requirement in requirements(ROOT / "client")


def test_modules_are_those_that_the_client_imports(build: Any) -> None:
    found = build.modules(SOURCES)
    assert {"edged", "edged.client.client", "edged.client.sources.opening", "edged.vision.draw"} <= set(found)
    daemon = {"api", "cli", "daemon", "device", "engines", "host", "library", "serving"}
    assert not [name for name in found if name.partition(".")[2].partition(".")[0] in daemon]
    assert len(found) < 90


def test_modules_imported_only_for_types_are_left_out(build: Any) -> None:
    code = "if TYPE_CHECKING:\n    import edged.a\nelse:\n    import edged.b\ndef f():\n    from edged.c import d\n"
    assert set(build._imports(ast.parse(code))) == {"edged.c", "edged.c.d"}


def test_client_without_optional_packages_works(build: Any, tmp_path: Path) -> None:
    for path in build.modules(SOURCES).values():
        target = tmp_path / path.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
for name in ("cv2", "onnx", "onnxruntime", "av", "zmq", "rich", "typer"):
    sys.modules[name] = None
import edged
from edged.client import AsyncClient, Client, Result, open_source
from edged.errors import EdgedError
assert edged.__file__.startswith({str(tmp_path)!r})
print(next(open_source({str(tmp_path / "a.jpg")!r}), "no picture"))
for what in (lambda: open_source("scene:"), lambda: Client("localhost:1").add_model("m", {__file__!r})):
    try:
        what()
    except EdgedError as error:
        print(error.code.value, str(error).partition(";")[0])
"""
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "no picture",
        "UNSUPPORTED a drawn scene needs opencv-python-headless",
        "UNSUPPORTED sending a model needs onnx",
    ]
