"""Generates edged/proto from protos/ at every build of the package, also for editable installs."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = "edged/proto"
_POOLS = {
    "from google.protobuf import descriptor_pool as _descriptor_pool\n": "from edged.proto import POOL as _POOL\n",
    "_descriptor_pool.Default()": "_POOL",
}
_IMPORT = re.compile(r'^import "(\w+\.proto)";$', re.MULTILINE)


class ProtoBuildHook(BuildHookInterface):
    """Runs protoc over every file in protos/, so that the output imports as `edged.proto.NAME_pb2`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        from grpc_tools import protoc

        with tempfile.TemporaryDirectory() as scratch:
            names = _stage(Path(self.root, "protos"), Path(scratch, _PACKAGE))
            if protoc.main(["protoc", f"-I{scratch}", f"--python_out={self.root}", f"--pyi_out={self.root}", *names]):
                raise RuntimeError("protoc failed on protos/: see its message above")
        for path in Path(self.root, _PACKAGE).glob("*_pb2.py"):
            path.write_text(_in_own_pool(path.read_text()))
        for path in Path(self.root, "protos").glob("*.proto"):
            shutil.copy(path, Path(self.root, _PACKAGE))  # for clients in other languages
        # These files are ignored by git; without this line the wheel would leave them out.
        build_data["artifacts"] += [f"{_PACKAGE}/*_pb2.py", f"{_PACKAGE}/*_pb2.pyi", f"{_PACKAGE}/*.proto"]


def _in_own_pool(code: str) -> str:
    """Return generated code that registers its messages in the package's pool, not the default one.

    A process has one default pool, and tritonclient registers package `inference` there too. The second import would
    fail with "duplicate symbol".
    """
    for old, new in _POOLS.items():
        if code.count(old) != 1:
            raise RuntimeError(f"unexpected code from protoc: {old!r} does not occur exactly once")
        code = code.replace(old, new)
    return code


def _stage(source: Path, target: Path) -> list[str]:
    """Copy the protos into the folder of the Python package; return their names below the include root.

    In protos/ they import each other by bare names, so that `protoc -I protos protos/*.proto` works for every language.
    Python's generated modules import each other by the names that protoc was given.
    """
    shutil.copytree(source, target)
    for path in target.glob("*.proto"):
        path.write_text(_IMPORT.sub(rf'import "{_PACKAGE}/\1";', path.read_text()))
    return sorted(f"{_PACKAGE}/{path.name}" for path in target.glob("*.proto"))
