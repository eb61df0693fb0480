"""Warm-up requests of a model's config.pbtxt, sent before an engine serves."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath

import numpy as np

from edged.backends.profile import Profile
from edged.engines.probe import probe_session
from edged.errors import (
    ConfigError,
    DeadlineExceeded,
    EdgedError,
    HostLost,
    NotReady,
    OutOfMemory,
    Overloaded,
    WarmupFailed,
)
from edged.files import read_inside
from edged.models.model import Model
from edged.models.triton_check import made_up_inputs
from edged.models.triton_config import WARMUP_FOLDER, Warmup, WarmupInput
from edged.serving.link import HostLink
from edged.serving.work import InputTensor
from edged.tensors import TensorSpec, byte_size, numpy_dtype

_ANY = Profile()
_PASSING = (OutOfMemory, Overloaded, NotReady, DeadlineExceeded)  # caused by the box and its load, not by the request


async def warm_up(model: Model, link: HostLink, session: int, profile: Profile = _ANY) -> None:
    """Send the warm-up requests within the session's range of shapes, before it serves.

    WarmupFailed, naming the request, if one fails and would fail again; temporary errors as they are.
    """
    for warmup in model.triton.warmups:
        try:
            inputs = await asyncio.to_thread(inputs_of, warmup, model)
            if not profile.takes({tensor.name: tensor.shape for tensor in inputs}):
                continue
            for _ in range(warmup.count):
                async with probe_session(inputs, link, session):
                    pass
        except HostLost:
            raise
        except EdgedError as error:
            kind = next((kind for kind in _PASSING if isinstance(error, kind)), WarmupFailed)
            raise kind(f"its model_warmup {warmup.name!r} failed: {error}") from error


def require_data(model: Model) -> None:
    """Raise ConfigError if a request cannot be made: a file is missing or has the wrong size."""
    for warmup in model.triton.warmups:
        inputs_of(warmup, model)


def inputs_of(warmup: Warmup, model: Model) -> tuple[InputTensor, ...]:
    """Return the tensors of one request. ConfigError for a missing file or one of the wrong size."""
    given = {each.name: each for each in warmup.inputs}
    made_up, batch = made_up_inputs(model.triton), warmup.batch_size
    tensors = []
    for spec in model.inspection.signature.inputs:
        each = given.get(spec.name)
        if each is not None:
            shape = (batch, *each.dims) if batch else each.dims
            tensors.append(InputTensor(spec.name, spec.datatype, shape, _data(warmup, each, spec, shape, model)))
        elif spec.name in made_up:
            shape = tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape)
            shape = (batch, *shape[1:]) if batch else shape
            tensors.append(InputTensor(spec.name, spec.datatype, shape, _zeros(spec.datatype, shape)))
    return tuple(tensors)


def _data(warmup: Warmup, each: WarmupInput, spec: TensorSpec, shape: tuple[int, ...], model: Model) -> bytes:
    if each.data == "file":
        path = PurePosixPath(WARMUP_FOLDER, each.file)
        return _file(f"model_warmup {warmup.name!r}", Path(model.entry.folder), path, spec, shape)
    return _random(spec.datatype, shape) if each.data == "random" else _zeros(spec.datatype, shape)


def _file(what: str, folder: Path, path: PurePosixPath, spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    try:
        data = read_inside(folder, path)
    except OSError as error:
        raise ConfigError(f"{what}: {path.name} cannot be read: {error.strerror or error}") from error
    if spec.datatype != "BYTES" and len(data) != byte_size(spec.datatype, shape):
        wanted = byte_size(spec.datatype, shape)
        raise ConfigError(f"{what}: {path.name} has {len(data)} bytes, {spec.datatype}{list(shape)} takes {wanted}")
    return data


def _zeros(datatype: str, shape: tuple[int, ...]) -> bytes:
    elements = int(np.prod(shape, dtype=np.int64))
    return bytes(elements * 4 if datatype == "BYTES" else byte_size(datatype, shape))  # a text of length 0


def _random(datatype: str, shape: tuple[int, ...]) -> bytes:
    """Return reproducible random data. Integers are 0 or 1, since they may be an index; UINT8 is 0 to 255."""
    if datatype == "BYTES":
        return _zeros(datatype, shape)
    random, dtype = np.random.default_rng(0), numpy_dtype(datatype)
    if datatype == "BF16":
        return (random.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if dtype.kind == "f":
        return random.random(shape).astype(dtype).tobytes()
    return random.integers(0, 256 if datatype == "UINT8" else 2, shape).astype(dtype).tobytes()
