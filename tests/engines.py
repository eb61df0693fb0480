"""Engines built in this process, as a build child does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from onnx import ModelProto

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import UNOPTIMISED, Composition, Order, Recipe, Session
from edged.jobs.tasks import load_graphs
from tests import models


def order(folder: Path, proto: ModelProto, backend: str, **recipe: Any) -> Order:
    """Save a model in a folder; return the order for an engine of it."""
    path = models.save(proto, folder / "model.onnx")
    return Order(str(path), models.signature(proto), Recipe(backend, **recipe))


def build(wanted: Order, out: Path) -> tuple[Order, Composition]:
    """Build an engine into a folder; return the order that opens it, and the composition that the runtime made."""
    out.mkdir(parents=True, exist_ok=True)
    composition = registry.load(wanted.recipe.backend).build(wanted, out, lambda fraction: None, load_graphs)
    return msgspec.structs.replace(wanted, artefact=Artefact.seal(out)), composition


def opened(wanted: Order) -> Session:
    """Open a session of an order's engine."""
    return registry.load(wanted.recipe.backend).open(wanted)


def reference(folder: Path, proto: ModelProto) -> Session:
    """Open a session of the model as it was written, without optimisation."""
    return opened(order(folder / "reference", proto, "onnxruntime", optimization=UNOPTIMISED))
