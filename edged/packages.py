"""Optional Python packages: whether they are installed, and the command that installs them.

Commands name the interpreter that runs this program, since a service has its own interpreter. Commands name packages
instead of an extra of `edged`, since `edged` may be a checkout that is not on any index.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

# The same as in `pyproject.toml`; a test compares them.
EXTRAS = {
    "convert": ("onnxslim>=0.1.90",),
    "fleet": ("obstore>=0.9", "pynacl>=1.5"),
    "genai": ("onnxruntime-genai>=0.18", "openvino-genai>=2026.4"),
    "media": ("av>=12",),
    "mqtt": ("paho-mqtt>=2",),
    "tensorrt-rtx": (
        "cuda-bindings>=12.9.1",
        "tensorrt_rtx_cu12_bindings>=1.7,<1.8",
        "tensorrt_rtx_cu12_libs>=1.7,<1.8",
    ),
    "tracking": ("supervision>=0.30",),
}
# Installed without their dependencies, which include an OpenCV that needs a display and overwrites the headless one.
_ALONE = {"tracking": ("trackers>=2.6",)}

# The packages of a runtime, by the backend that uses it; other backends have the name of their package.
_RUNTIMES = {"tensorrt": ("tensorrt", "cuda-bindings"), "tensorrt_rtx": EXTRAS["tensorrt-rtx"]}

_DEBIAN = Path("/opt/edged/releases")  # the environments of the Debian package, which have no pip

# Dependencies of edged that edged-client (client/) does not have: module, and requirement as in `pyproject.toml`.
NOT_IN_CLIENT = {"cv2": "opencv-python-headless>=5.0", "onnx": "onnx>=1.23"}


def install(*requirements: str, option: str = "") -> str:
    """Return the command that installs packages for this program."""
    return _pip("install", *filter(None, (option,)), *requirements)


def uninstall(*names: str) -> str:
    """Return the command that removes packages from this program's environment."""
    return _pip("uninstall", *names)


def install_extra(name: str) -> str:
    """Return the command that installs one of `EXTRAS`."""
    alone = _ALONE.get(name, ())
    return " && ".join((install(*EXTRAS[name]), *(install(each, option="--no-deps") for each in alone)))


def install_runtime(backend: str) -> str:
    """Return the command that installs the runtime of a backend."""
    return install(*_RUNTIMES.get(backend, (backend,)))


def reinstall_runtime(backend: str) -> str:
    """Return the command that replaces a backend's runtime, whose files may be damaged or of several versions."""
    return install(*_RUNTIMES.get(backend, (backend,)), option="--force-reinstall")


def missing(module: str, what: str) -> str:
    """Return the error message for the action `what`. The action needs `module`, which is not installed. `module` is a
    key of `NOT_IN_CLIENT`."""
    requirement = NOT_IN_CLIENT[module]
    return f"{what} needs {requirement.partition('>')[0]}; install it: {install(requirement)}"


def is_installed(module: str) -> bool:
    """Whether a module is installed. It is not imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _pip(*words: str) -> str:
    if Path(sys.prefix).is_relative_to(_DEBIAN.resolve()):
        names = ", ".join(word.partition(">")[0] for word in words[1:] if not word.startswith("-"))
        if "--force-reinstall" in words:
            return f"reinstall the Debian package edged, which contains {names}"
        verb = "exclude" if words[0] == "uninstall" else "include"
        return f"build the Debian package edged with EXTRAS that {verb} {names} (docs/packages.md)"
    interpreter = sys.executable or "python3"
    sudo = () if os.access(sys.prefix, os.W_OK) else ("sudo",)
    return shlex.join((*sudo, interpreter, "-m", "pip", *words))
