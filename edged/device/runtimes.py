"""Facts `runtime.* tensorrt.version cuda.* cudnn.version`: versions of installed runtimes, which are not imported. The
fact `runtime.onnxruntime_gpu_code` names the GPUs that ONNX Runtime's CUDA provider has code for.

Python packages are found by their `*.dist-info` directories (PyPA, "Recording installed projects"), which are read with
`Root`. The standard module importlib.metadata would follow links out of a recorded tree and block on a FIFO.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.decoding import ready
from edged.device import fatbin, libraries
from edged.device.root import Root

# The wheels that contain libnvinfer; the other TensorRT wheels depend on them.
_TENSORRT_LIBRARIES = ("tensorrt-cu13-libs", "tensorrt-cu12-libs", "tensorrt-libs")
# Fact -> the distributions of that runtime; distributions with native code come first.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "runtime.onnxruntime": ("onnxruntime",),
    "runtime.onnxruntime_gpu": ("onnxruntime-gpu",),
    "runtime.onnxruntime_openvino": ("onnxruntime-openvino",),
    "runtime.openvino": ("openvino",),
    "runtime.onnxruntime_genai": ("onnxruntime-genai", "onnxruntime-genai-cuda"),
    "runtime.openvino_genai": ("openvino-genai",),
    "runtime.tensorrt": (
        *_TENSORRT_LIBRARIES,
        *("tensorrt-cu13-bindings", "tensorrt-cu12-bindings", "tensorrt-bindings"),
        *("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
    ),
    "runtime.tensorrt_rtx": (
        *("tensorrt-rtx-cu13-libs", "tensorrt-rtx-cu12-libs", "tensorrt-rtx-libs"),
        *("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
    ),
    # ONNX Runtime and the TensorRT wheels load CUDA and cuDNN from these if they are installed.
    "runtime.cuda": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "runtime.cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
# The library of ONNX Runtime's CUDA provider, and the fact. An engine's key has the package's version, not this fact.
_PROVIDER, _CODE = "onnxruntime/capi/libonnxruntime_providers_cuda.so", "runtime.onnxruntime_gpu_code"
_WANTED = frozenset(name for names in _PACKAGES.values() for name in names)

# The folders of packages in a recorded tree: the environment of a service comes before the system's, as in sys.path.
_RECORDED = (
    "opt/*/lib/python3.*/site-packages",
    "opt/*/.venv/lib/python3.*/site-packages",
    "opt/*/venv/lib/python3.*/site-packages",
    ".venv/lib/python3.*/site-packages",
    "usr/local/lib/python3.*/dist-packages",
    "usr/local/lib/python3.*/site-packages",
    "usr/lib/python3/dist-packages",
    "usr/lib/python3.*/dist-packages",
    "usr/lib/python3.*/site-packages",
)


class _Component(msgspec.Struct):
    version: str = ""


class _CudaVersions(msgspec.Struct):
    """The part of CUDA's `version.json` that is read."""

    cuda: _Component = msgspec.field(default_factory=_Component)


def probe(root: Root) -> dict[str, str]:
    """Read package versions as PEP 440 text, and library versions from file names or Debian packages."""
    installed = _distributions(root)
    facts = {}
    for fact, names in _PACKAGES.items():
        version = next((installed[name] for name in names if name in installed), None)
        if version:
            facts[fact] = version
    if "onnxruntime-gpu" in installed:
        facts[_CODE] = _provider_code(root)
    return facts | _libraries(root, installed)


def _provider_code(root: Root) -> str:
    """Return the architectures of the provider's kernels, joined with spaces; empty if they cannot be read."""
    found = (fatbin.code(root, path) for folder in _directories(root) for path in root.glob(f"{folder}/{_PROVIDER}"))
    return " ".join(next(found, ()))


def _distributions(root: Root) -> dict[str, str]:
    """Return a mapping from the normalised name of each known distribution to its version. If several folders of
    Python's search path have a copy, the copy in the first of these folders counts, as in imports."""
    found: dict[str, str] = {}
    for directory in _directories(root):
        for path in root.glob(f"{directory}/*-info"):
            name, version = _name_and_version(path.rpartition("/")[2])
            if name in _WANTED and name not in found:
                found[name] = _metadata_version(root, path) or version
    return found


def _directories(root: Root) -> Iterator[str]:
    if root.is_live:
        yield from (entry.strip("/") for entry in sys.path if entry.startswith("/"))
        return
    for pattern in _RECORDED:
        yield from root.glob(pattern)


def _name_and_version(directory: str) -> tuple[str, str]:
    """Split `onnxruntime_gpu-1.23.2.dist-info` into `("onnxruntime-gpu", "1.23.2")`, the name as in PEP 503."""
    stem = directory.removesuffix(".dist-info").removesuffix(".egg-info")
    name, _, version = stem.partition("-")
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("-")[0]


def _metadata_version(root: Root, path: str) -> str | None:
    """Return the Version header, which pip shows; the directory's name can differ from it."""
    text = root.read(f"{path}/METADATA") or root.read(f"{path}/PKG-INFO") or root.read(path) or ""
    match = re.search(r"^Version: *(\S+)", text.partition("\n\n")[0], re.MULTILINE)
    return match[1] if match else None


def _libraries(root: Root, installed: Mapping[str, str]) -> dict[str, str]:
    return {
        "tensorrt.version": _tensorrt(root, installed),
        "cuda.version": _cuda_toolkit(root),
        "cuda.runtime": libraries.newest(root, _cudart_patterns()) or "",
        "cudnn.version": libraries.system_version(root, "libcudnn.so.*") or "",
    }


def _tensorrt(root: Root, installed: Mapping[str, str]) -> str:
    """Return the version of the library that the Python bindings load: a wheel's, otherwise the system's.

    An engine depends on all four numbers of the version. The library contains them; packages and file names may have
    only three.
    """
    for name in _TENSORRT_LIBRARIES:
        if name in installed:
            match = re.match(r"[0-9]+(\.[0-9]+){0,3}", installed[name])  # without ".post1" of a repackaged wheel
            return _marked(root, _directories(root), "tensorrt_libs/libnvinfer.so.*") or (match[0] if match else "")
    version = libraries.system_version(root, "libnvinfer.so.*")
    if version is None:
        return ""
    marked = _marked(root, libraries.DIRECTORIES, f"libnvinfer.so.{version}")
    package = f"libnvinfer{version.partition('.')[0]}"
    packaged = libraries.upstream(libraries.package_versions(root, [package]).get(package, ""))
    # If the package's version differs from the file's, the package belongs to another copy of the library.
    return marked or (packaged if packaged.startswith(f"{version}.") else version)


def _marked(root: Root, directories: Iterable[str], pattern: str) -> str | None:
    """Return the version in the symbol of the first library that matches."""
    for directory in directories:
        for path in root.glob(f"{directory}/{pattern}"):
            return libraries.marked_version(root, path)
    return None


def _cuda_toolkit(root: Root) -> str:
    """Return the version of the toolkit at `/usr/local/cuda`, otherwise of the newest `/usr/local/cuda-*`."""
    found = []
    for path in (*root.glob("usr/local/cuda/version.json"), *root.glob("usr/local/cuda-*/version.json")):
        try:
            version = msgspec.json.decode(root.read(path) or "", type=ready(_CudaVersions)).cuda.version
        except (msgspec.MsgspecError, RecursionError):
            continue
        if path.startswith("usr/local/cuda/") and version:
            return version
        found.append(version)
    return max(found, key=libraries.as_numbers, default="")


def _cudart_patterns() -> Iterator[str]:
    yield "usr/local/cuda/targets/*/lib/libcudart.so.*"
    yield "usr/local/cuda/lib64/libcudart.so.*"
    yield "usr/local/cuda-*/targets/*/lib/libcudart.so.*"
    yield from (f"{directory}/libcudart.so.*" for directory in libraries.DIRECTORIES)
