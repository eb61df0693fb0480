"""A model that Frigate sends is taken in as `edged models add` does: examined first, in children with limits."""

from __future__ import annotations

import asyncio

from edged.api.grpc.adding import adding
from edged.backends import registry
from edged.engines.admission.examination import admit
from edged.engines.controller import Controller
from edged.files import not_stored


async def take_in(controller: Controller, name: str, data: memoryview) -> None:
    """Returns once the model is in the repository; ModelRefused, InvalidInput or AlreadyExists where it stays out."""
    repository = controller.repository
    try:
        async with adding(repository, "the model") as folder:
            file = folder / "model.onnx"
            await asyncio.to_thread(file.write_bytes, data)
            await admit(controller.builder, file, {}, registry.installed(controller.fingerprint.facts))
            await asyncio.to_thread(repository.add, name, {file.name: file}, {}, move=True)
    except OSError as error:
        raise not_stored("the model", error) from error
    await controller.added(name)
