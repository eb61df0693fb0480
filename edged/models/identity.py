"""A model's digest: sha256 over the ONNX file and its external data, which together determine the answers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from edged.backends.contract import Order
from edged.errors import ModelRefused, Superseded

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """Return the hexadecimal sha256 of one file. Raises ModelRefused if the file cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", opener=_non_blocking) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise ModelRefused(f"{path.name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _non_blocking(name: str, flags: int) -> int:
    """Open a file with O_NONBLOCK, because opening a FIFO would otherwise block until a process writes to it."""
    return os.open(name, flags | os.O_NONBLOCK)


def require_same(order: Order) -> None:
    """Raise Superseded if the model of an order was replaced or removed on disk, ModelRefused if the model cannot be
    read. Do nothing if the order has no digest."""
    if not order.digest:
        return
    try:
        digest = model_digest(Path(order.model), order.external)
    except ModelRefused as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise Superseded(
                f"{Path(order.model).name} was removed while it was in use; put it back and try again"
            ) from error
        raise
    if digest != order.digest:
        raise Superseded(
            f"{Path(order.model).name} was replaced on disk while it was in use; try again once the file is complete"
        )


def model_digest(model: Path, external: Iterable[str], *, graph_digest: str | None = None) -> str:
    """Return the hexadecimal sha256 over the model file and the relative path and content of each external file.
    `graph_digest` is the digest of the model file, if known. Raises ModelRefused if a file cannot be read.

    Without external data, return the digest of the model file, as `sha256sum` prints it.
    """
    graph = graph_digest or file_digest(model)
    names = sorted(set(external))
    if not names:
        return graph
    digest = hashlib.sha256(f"model\0{graph}\0".encode())
    for name in names:
        digest.update(f"external\0{name}\0{file_digest(model.parent / name)}\0".encode())
    return digest.hexdigest()
