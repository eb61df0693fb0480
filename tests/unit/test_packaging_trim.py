"""What the package leaves out of the wheels: stubs of libraries, symbols, unused files."""

from __future__ import annotations

import ast
import ctypes
import importlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import edged

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests/system/packages/opencv_calls.py"
MACHINES = {"x86_64": 62, "aarch64": 183}
SOME = {"one": "", "two": "TWO_2", "three": "THREE_3"}


@pytest.fixture
def elf(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "packaging/deb")
    return importlib.import_module("elf")


@pytest.fixture
def trim(elf: ModuleType) -> ModuleType:
    return importlib.import_module("trim")


@pytest.fixture
def machine() -> int:
    """This processor's number in ELF files."""
    if platform.machine() not in MACHINES:
        pytest.skip(f"no stubs for {platform.machine()}")
    return MACHINES[platform.machine()]


@pytest.fixture(scope="session")
def opencv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with this environment's cv2, its libraries replaced as in the package."""
    spec = find_spec("cv2")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    libraries = installed.with_name("opencv_python_headless.libs")
    if not (installed / "cv2.abi3.so").exists() or not libraries.exists():
        pytest.skip("OpenCV is not from its wheel for Linux")
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(installed, site / "cv2", ignore=shutil.ignore_patterns("__pycache__", "*.pyi", "cv2.abi3.so"))
    (site / "cv2/cv2.abi3.so").symlink_to(installed / "cv2.abi3.so")  # the loader looks beside the link
    shutil.copytree(libraries, site / libraries.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "packaging/deb")
        importlib.import_module("trim").replace_libraries(site / "cv2/cv2.abi3.so", site / libraries.name)
    yield site
    shutil.rmtree(site)


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of `site`; every symbol is looked up at the start."""
    environment = os.environ | {"PYTHONPATH": str(site), "LD_BIND_NOW": "1"}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", MACHINES)
def test_stub_is_read_back_as_written(elf: ModuleType, name: str) -> None:
    stub = elf.stub(MACHINES[name], "libexample.so.1", SOME, "not here")
    assert stub == elf.stub(MACHINES[name], "libexample.so.1", dict(reversed(SOME.items())), "not here")
    assert elf.SharedObject(stub).machine == MACHINES[name]
    assert len(stub) < 2000


def test_stub_defines_each_name_with_its_version_and_traps(elf: ModuleType, machine: int, tmp_path: Path) -> None:
    library = tmp_path / "libexample.so.1"
    library.write_bytes(elf.stub(machine, library.name, SOME, "not in this package"))
    loaded = ctypes.CDLL(str(library))
    assert all(hasattr(loaded, name) for name in SOME)
    assert not hasattr(loaded, "four")
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    assert find(loaded._handle, b"two", b"TWO_2")
    assert not find(loaded._handle, b"two", b"THREE_3")
    called = run(tmp_path, "-c", f"import ctypes; ctypes.CDLL({str(library)!r}).two()")
    assert called.returncode == -signal.SIGILL
    assert called.stderr.startswith("not in this package\n")  # an emulator adds a line


def test_shared_object_names_what_it_takes(elf: ModuleType) -> None:
    spec = find_spec("numpy._core._multiarray_umath")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).read_bytes()
    library = elf.SharedObject(data)
    assert any(name.startswith("libc.so") for name in library.needed)
    symbols = {symbol.name: symbol for symbol in library.symbols()}
    assert symbols["PyInit__multiarray_umath"].is_defined
    assert symbols["PyErr_NoMemory"].version == ""
    assert symbols["malloc"].version.startswith("GLIBC_2.")
    with pytest.raises(ValueError, match="ELF"):
        elf.SharedObject(b"#!/bin/sh\n")


def test_without_symbols_still_loads(elf: ModuleType, tmp_path: Path) -> None:
    spec = find_spec("uvloop.loop")
    assert spec is not None
    assert spec.origin is not None
    folder, whole = tmp_path / "uvloop", Path(spec.origin)
    shutil.copytree(whole.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    smaller = elf.without_symbols(whole.read_bytes())
    assert len(smaller) < whole.stat().st_size / 2
    (folder / whole.name).write_bytes(smaller)
    done = run(tmp_path, "-c", "from uvloop import loop; loop.Loop().close(); print(loop.__file__)")
    assert (done.stdout, done.stderr) == (f"{folder / whole.name}\n", "")


def test_opencv_with_stubs_has_every_call_of_edged(opencv: Path) -> None:
    names = {path.name for path in (opencv / "opencv_python_headless.libs").iterdir()}
    assert sum(path.stat().st_size for path in (opencv / "opencv_python_headless.libs").glob("*av[cfu]*")) < 3e6
    assert not any(name.startswith(("libvpx", "libssl", "libcrypto", "libgfortran")) for name in names)
    done = run(opencv, str(CALLS))
    assert (done.returncode, done.stdout, done.stderr) == (0, "all calls returned\n", "")


def test_opencv_with_stubs_video_ends_the_process_with_a_message(opencv: Path) -> None:
    done = run(opencv, "-c", "import cv2; cv2.VideoCapture('/nonexistent.mp4')")
    assert done.returncode == -signal.SIGILL
    assert "edged's package leaves out" in done.stderr


def test_opencv_names_in_edged_are_those_that_were_tried() -> None:
    used = set[str]().union(*(_opencv_names(path) for path in Path(edged.__file__).parent.rglob("*.py")))
    untried = used - _opencv_names(CALLS)
    assert not untried, f"call them in {CALLS.relative_to(ROOT)}: the package may lack a library for them"


def _opencv_names(path: Path) -> set[str]:
    """The attributes of cv2 in a module, which imports it as `cv2` only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cv2":
            found.add(node.attr)
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] != "cv2", f"{path}: import cv2 as a whole"
        if isinstance(node, ast.Import):
            assert all(each.asname in (None, "cv2") for each in node.names if each.name.startswith("cv2")), path
    return found


def test_unused_keeps_licences_metadata_and_what_is_imported(trim: ModuleType) -> None:
    for name in (
        "numpy-2.4.6.dist-info/licenses/LICENSE.txt",
        "numpy-2.4.6.dist-info/METADATA",
        "opencv_python_headless-5.0.0.93.dist-info/LICENSE-3RD-PARTY.txt",
        "onnxruntime/ThirdPartyNotices.txt",
        "onnxruntime/transformers/onnx_utils.py",
        "onnxruntime/tools/symbolic_shape_infer.py",
        "onnxruntime/capi/libonnxruntime_providers_shared.so",
        "pygments/lexers/python.py",
        "numpy/testing/__init__.py",
        "onnx/reference/__init__.py",
    ):
        assert not trim.UNUSED.search(name), name
    for name in (
        "numpy/_core/tests/test_umath.py",
        "numpy/f2py/crackfortran.py",
        "numpy/__init__.pyi",
        "numpy/_core/_simd.cpython-311-x86_64-linux-gnu.so",
        "onnx/backend/base.py",
        "onnx/defs/nn/old.cc",
        "onnxruntime/transformers/benchmark.py",
        "onnxruntime/capi/libonnxruntime.so.1.32.0",
        "pygments/lexers/javascript.py",
        "bin/uvicorn",
    ):
        assert trim.UNUSED.search(name), name
