"""A model that Frigate sends is taken in as `edged models add` does: examined first, in children with limits."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from edged.backend import registry
from edged.build.admission.examination import admit
from edged.control.controller import Controller
from edged.files import not_stored


async def take_in(controller: Controller, name: str, data: memoryview) -> None:
    """Returns once the model is in the repository; ModelRefused, InvalidInput or AlreadyExists where it stays out."""
    repository = controller.repository
    try:
        repository.root.mkdir(parents=True, exist_ok=True, mode=0o750)
        # Beside the models, because that is where its bytes have to fit.
        with tempfile.TemporaryDirectory(prefix=".adding-", dir=repository.root) as folder:
            file = Path(folder) / "model.onnx"
            await asyncio.to_thread(file.write_bytes, data)
            await admit(controller.builder, file, {}, registry.installed(controller.fingerprint.facts))
            await asyncio.to_thread(repository.add, name, {file.name: file}, {}, move=True)
    except OSError as error:
        raise not_stored("the model", error) from error
    controller.added(name)
