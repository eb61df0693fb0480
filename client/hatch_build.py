"""Adds the modules that `edged.client` needs to the wheel of edged-client."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ClientBuildHook(BuildHookInterface):
    """Generates the gRPC code as the wheel of edged does, and includes each module under its own name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        project = Path(self.root).parent
        generator = _load(project / "hatch_build.py").ProtoBuildHook
        scratch = str(project / "dist")
        generator(str(project), {}, self.build_config, self.metadata, scratch, self.target_name).initialize(
            version, {"artifacts": []}
        )
        files = {project / f"edged/{name}" for name in ("py.typed", "proto/__init__.py")}
        files |= set((project / "edged/proto").glob("*_pb2.py*")) | set((project / "edged/proto").glob("*.proto"))
        files |= set(_load(Path(self.root, "modules.py")).modules(project).values())
        build_data["force_include"].update({str(path): str(path.relative_to(project)) for path in sorted(files)})


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edged_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
