"""Removes from an environment what edged never uses: files that nothing imports, symbols, and OpenCV's libraries for
video and linear algebra.

`opencv-python-headless` is linked to FFmpeg and OpenBLAS. edged reads and draws pictures only, so none of their code
runs; but cv2 does not load without them. They become stubs: libraries of some kilobytes that define the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import elf

# Files and folders that nothing imports: tests of libraries, their sources, types for editors, developers' tools.
UNUSED = re.compile(
    r"""
    (^|/)tests/ | \.(a|c|cc|cpp|f|f90|h|hpp|proto|pxd|pxi|pyf|pyi|pyx)$ | ^[^/]+\.lock$ | ^\.lock$ | ^bin/
    | ^numpy/(distutils|doc|f2py|_pyinstaller)/ | ^numpy/_core/(_simd|_\w+_tests)\.
    | ^onnx/(backend|bin|frontend|fuzz|tools)/ | ^onnx/defs/gen_
    # Quantisation imports some of these, which differ by release.
    | ^onnxruntime/(backend|datasets)/
    | ^onnxruntime/tools/(?!(__init__|symbolic_shape_infer)\.py$)
    | ^onnxruntime/transformers/(?!(__init__|float16|fusion_utils|onnx_model|onnx_utils|shape_infer_helper)\.py$)
    # The same library again, for programs in C.
    | ^onnxruntime/capi/libonnxruntime\.so\.
    # rich colours tracebacks; of all languages these have to be Python.
    | ^pygments/lexers/(?!(__init__|_mapping|python)\.py$)
    """,
    re.VERBOSE,
)
# What installers write about the machine that they run on.
LOCAL = re.compile(r"\.dist-info/(RECORD|REQUESTED|direct_url\.json|uv_cache\.json)$")
# Extension modules with symbols or debug information; in the first two they are nine tenths.
SYMBOLS = ("ml_dtypes/*.so", "uvloop/*.so", "watchfiles/*.so", "numpy/*/*.so")

_OPENCV, _LIBRARIES = "cv2/cv2.abi3.so", "opencv_python_headless.libs"
REPLACED = ("libavcodec", "libavformat", "libavutil", "libopenblas", "libswscale")
_MESSAGE = "OpenCV called {}, which edged's package leaves out"


def trim(site: Path) -> None:
    """Remove what is not used from a folder of installed wheels."""
    for path in [path for path in site.rglob("*") if path.is_file()]:
        name = str(path.relative_to(site))
        if UNUSED.search(name) or LOCAL.search(name):
            path.unlink()
    for pattern in SYMBOLS:
        for path in site.glob(pattern):
            path.write_bytes(elf.without_symbols(path.read_bytes()))
    replace_libraries(site / _OPENCV, site / _LIBRARIES)
    for folder in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def replace_libraries(module: Path, folder: Path) -> None:
    """Replace OpenCV's libraries for video and linear algebra by stubs, and remove those that only they need.

    Raises SystemExit if OpenCV's wheel is not made up as expected: another release may use the libraries otherwise.
    """
    cv2 = elf.SharedObject(module.read_bytes())
    taken = {symbol.name: symbol.version for symbol in cv2.symbols() if not symbol.is_defined}
    for prefix in REPLACED:
        found = list(folder.glob(f"{prefix}*"))
        if len(found) != 1 or found[0].name not in cv2.needed:
            raise SystemExit(f"trim.py: {folder.name} has not one {prefix} that cv2 needs: does edged still need none?")
        library = elf.SharedObject(found[0].read_bytes())
        names = {}
        for symbol in library.symbols():
            if symbol.is_defined and symbol.name in taken:
                if not symbol.is_function:
                    raise SystemExit(f"trim.py: cv2 uses data of {prefix}, {symbol.name}: a stub cannot replace it")
                names[symbol.name] = taken[symbol.name]
        found[0].write_bytes(elf.stub(library.machine, library.soname, names, _MESSAGE.format(prefix)))
    for name in {path.name for path in folder.iterdir()} - _reached(cv2.needed, folder):
        (folder / name).unlink()


def _reached(names: Iterable[str], folder: Path) -> set[str]:
    """Return the names of the libraries in the folder that are loaded if these are."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and (folder / name).is_file():
            found.add(name)
            waiting += elf.SharedObject((folder / name).read_bytes()).needed
    return found
