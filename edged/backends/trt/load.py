"""Opens a built engine ("plan"): checks its header and version, then deserialises it into a session.

The header's format was derived from built plans. Bytes 0-3 are `ftrt` for TensorRT or `vtrt` for TensorRT-RTX. If bytes
4-7 are 0, bytes 24-27 are the major, minor, patch and build number of the library that built the plan. If, moreover,
bytes 28-31 repeat bytes 0-3, bytes 16-23 are the size of the whole plan. Numbers are little-endian. Some exporters put
four bytes with a length, and a JSON object of this length, before the plan.

The runtime has no checksum for the bytes after the header, so only edged's digest shows whether these are intact.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from edged.backends import cuda
from edged.backends.contract import Nodes, Order, one_line
from edged.backends.trt.api import Engine, Named, Trt, find
from edged.backends.trt.log import Log, explain, listen
from edged.backends.trt.options import Options
from edged.backends.trt.session import TensorRtSession
from edged.errors import EngineUnusable, Unsupported
from edged.files import NOT_JSON

if TYPE_CHECKING:
    from edged.backends.cuda.driver import Device

BLOB = "engine.plan"

# Messages for TensorRT-RTX's diagnostics about an engine; several may apply at once.
_DIAGNOSTICS = {
    "VERSION_MISMATCH": "another version of the runtime built it",
    "UNSUPPORTED_CC": "it is for another GPU",
    "OLD_CUDA_DRIVER": "the driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "CUDA_ERROR": "CUDA failed",
    "MALFORMED_ENGINE": "it is damaged",
}
_KINDS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT-RTX"}
_MAGIC, _SHORT, _HEADER = 4, 28, 64  # bytes: the magic; the header up to the version; the whole header
_LONGEST_JSON = 1 << 20


class Loaded(msgspec.Struct, frozen=True):
    """An engine, and the objects that must live as long as the engine."""

    engine: Engine
    log: Log
    owners: tuple[object, ...]


def dla_core(order: Order) -> int | None:
    """Return the DLA core that an engine is for; None for the GPU."""
    return Options.parse(order.recipe.optimization, order.recipe.options).dla_core


def read_plan(order: Order, kind: str, version: str) -> bytes:
    """Return the plan of a built engine. Raises EngineDamaged if the plan was altered. Raises EngineUnusable if the
    engine has not been built, or was built by another kind or version of runtime."""
    if order.artefact is None:
        raise EngineUnusable("this engine has not been built yet")
    data = order.artefact.load(BLOB)
    header = read_header(data)
    options = Options.parse(order.recipe.optimization, order.recipe.options)
    require_version(header, kind, version, any_minor=options.version_compatible)
    return data[header.offset :] if header.offset else data


def deserialise(trt: Trt, data: bytes | memoryview, kind: str, dla_core: int | None = None) -> Loaded:
    """Deserialise a plan on the calling thread's current device. Raises EngineUnusable with the runtime's reason.

    `dla_core` is the DLA core to run on: a plan for DLA does not say for which core it is.

    Code in a plan, such as plugins, is never run.
    """
    log = Log()
    logger = listen(trt, log)
    plugins = find(trt, "init_libnvinfer_plugins")
    if callable(plugins):
        plugins(logger, "")  # registers the runtime's own plugins
    try:
        runtime = trt.Runtime(logger)
        runtime.engine_host_code_allowed = False
        if dla_core is not None:
            runtime.DLA_core = dla_core
        problem = _validity(trt, runtime, data)
        engine = None if problem else runtime.deserialize_cuda_engine(data)
    except Exception as error:  # the runtime's errors have no common base
        reason = explain(log.reason() or one_line(error))
        raise EngineUnusable(f"{kind} cannot load the engine: {reason}") from error
    if engine is None:
        reason = "; ".join(word for word in (problem, log.reason()) if word)
        raise EngineUnusable(f"{kind} cannot load the engine: {explain(reason)}")
    return Loaded(engine, log, (runtime, logger))


def open_device(name: str) -> Device:
    """Open the device of a recipe ("cuda:0"). Raises EngineUnusable if it cannot be opened."""
    try:
        return cuda.open_device(device_index(name))
    except Unsupported as error:
        raise EngineUnusable(str(error)) from error


def device_index(name: str) -> int:
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise EngineUnusable(f"TensorRT engines run on CUDA devices, not on {name}")
    return int(index or 0)


def _validity(trt: Trt, runtime: object, data: bytes | memoryview) -> str:
    """Return why the runtime considers an engine invalid; empty if it does not, or if it has no such check."""
    ask = find(runtime, "get_engine_validity")
    if not callable(ask):
        return ""
    verdict, diagnostics = cast("Callable[[object], tuple[Named, int]]", ask)(data)
    if verdict.name != "INVALID":
        return ""
    members = getattr(find(trt, "EngineInvalidityDiagnostics"), "__members__", {})
    found = [_DIAGNOSTICS.get(name, name) for name, bit in members.items() if int(bit) & int(diagnostics)]
    return ", ".join(found) or "it cannot be used here"


class Header(msgspec.Struct, frozen=True):
    """The header of a plan. `kind` is "TensorRT" or "TensorRT-RTX". `version` has four numbers, each modulo 256, as in
    the header; "" if the header has no version. `size` is in bytes; None if the header has no size. The plan begins at
    byte `offset`."""

    kind: str
    version: str
    size: int | None
    offset: int = 0


def read_header(data: bytes) -> Header:
    """Return the header of a plan. Raises EngineUnusable if the data is not a plan, or is incomplete."""
    offset = _after_json(data)
    kind = _KINDS.get(data[offset : offset + _MAGIC])
    if kind is None:
        begin = data[:_MAGIC].hex(" ") or "nothing"
        raise EngineUnusable(f"the engine is not a TensorRT plan: it begins with {begin}; it will be rebuilt")
    length = len(data) - offset
    if length < _HEADER:
        raise EngineUnusable(
            f"the engine is truncated: its {length} bytes are shorter than a {kind} header; it will be rebuilt"
        )
    if any(data[offset + _MAGIC : offset + 2 * _MAGIC]):
        return Header(kind, "", None, offset)
    version = ".".join(str(number) for number in data[offset + _SHORT - 4 : offset + _SHORT])
    if data[offset + _SHORT : offset + _SHORT + _MAGIC] != data[offset : offset + _MAGIC]:
        return Header(kind, version, None, offset)
    size = int.from_bytes(data[offset + 16 : offset + 24], "little")
    if size != length:
        what = "is truncated" if length < size else "has extra bytes at its end"
        raise EngineUnusable(
            f"the engine {what}: it has {length} bytes, but its header says {size}; it will be rebuilt"
        )
    return Header(kind, version, size, offset)


def require_version(header: Header, kind: str, installed: str, *, any_minor: bool = False) -> None:
    """Raise EngineUnusable if another kind or another version of runtime built the plan. With `any_minor`, only the
    major version must match. A header without a version is accepted. The error names both kinds or both versions.
    """
    if header.kind != kind:
        raise EngineUnusable(f"the engine was built by {header.kind}; {kind} cannot load it, so it will be rebuilt")
    built, here = _numbers(header.version), _numbers(installed)
    if any_minor:
        built, here = built[:1], here[:1]
    # The versions of some packages have only three numbers. Then only three numbers are compared.
    common = min(len(built), len(here))
    if built[:common] != here[:common]:
        raise EngineUnusable(
            f"the engine was built by {kind} {header.version}, but {installed} is installed; it will be rebuilt"
        )


def _after_json(data: bytes) -> int:
    """Return the offset of the plan. If the data begins with a length and a JSON object of this length, the plan
    follows the object. Otherwise the offset is 0."""
    if len(data) < _MAGIC or data[:_MAGIC] in _KINDS:
        return 0
    length = int.from_bytes(data[:_MAGIC], "little")
    end = _MAGIC + length
    if not 2 <= length <= _LONGEST_JSON or data[end : end + _MAGIC] not in _KINDS:
        return 0
    try:
        msgspec.json.decode(data[_MAGIC:end], type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return 0
    return end


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:4]
    return tuple(int(part) % 256 for part in parts) if all(part.isdecimal() for part in parts) else ()


class OpenedSession(TensorRtSession):
    """A session that also owns its device and the objects that must live as long as its engine."""

    def __init__(self, loaded: Loaded, order: Order, device: Device) -> None:
        self._opened = loaded.owners
        self._owned: Device | None = None  # the caller owns the device until the session is open
        super().__init__(loaded.engine, order.signature, device, loaded.log.reason)
        self._owned = device

    def nodes(self) -> Nodes:
        """Return TensorRT as the provider of all nodes, without counts. Only the record of the build names the layers
        that a build for DLA left to the GPU."""
        return {"TensorRT": {}}

    def close(self) -> None:
        with self._device.current():
            super().close()
            self._opened = ()
        if self._owned is not None:
            self._owned.close()


def open_engine(trt: Trt, kind: str, version: str, order: Order) -> OpenedSession:
    """Open an engine with a runtime of this kind and version; see `Backend.open`."""
    data = read_plan(order, kind, version)
    device = open_device(order.recipe.device)
    try:
        with device.current():
            return _open(trt, kind, order, data, device)
    except BaseException:
        device.close()
        raise


def _open(trt: Trt, kind: str, order: Order, data: bytes, device: Device) -> OpenedSession:
    try:
        return OpenedSession(deserialise(trt, data, kind, dla_core(order)), order, device)
    except BaseException as error:
        # The frames of the traceback refer to the engine and the runtime, which must be freed before their device.
        for one in (error, error.__cause__):
            traceback.clear_frames(one.__traceback__ if one else None)
        raise
