"""Generates edged/proto from protos/ whenever the package is built, wheels and editable installs alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface):
    """Runs protoc over every file in protos/, so that the output imports as `edged.proto.NAME_pb2`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        from grpc_tools import protoc

        root = Path(self.root)
        sources = sorted((root / "protos").glob("*.proto"))
        # The left side of the mapping is the import path that the generated modules use for each other.
        arguments = ["protoc", f"--proto_path=edged/proto={root / 'protos'}"]
        arguments += [f"--python_out={root}", f"--pyi_out={root}"]
        arguments += [f"edged/proto/{source.name}" for source in sources]
        if protoc.main(arguments) != 0:
            raise RuntimeError("protoc failed on protos/: see its message above")
        # Generated files are ignored by git; without this line the wheel would leave them out.
        build_data["artifacts"] += ["edged/proto/*_pb2.py", "edged/proto/*_pb2.pyi"]
