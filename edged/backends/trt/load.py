"""From the bytes of a built engine ("plan") to an open session; checks everything that can be checked before.

The header was found by looking at plans that were built: bytes 0-3 are `ftrt` for TensorRT and `vtrt` for TensorRT-RTX,
4-7 a number that is 0 if the rest is as follows, 24-27 the major, minor, patch and build number of the library that
built it. If bytes 28-31 repeat the first four, 16-23 are the size of the whole plan. Numbers are little-endian. Some
exporters put a JSON object with its length (four bytes) before the plan.

What is behind the header has no checksum of the runtime's: a plan is only as sound as its digest.
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

# What TensorRT-RTX finds wrong with an engine, in words; it answers any number of these at once.
_DIAGNOSTICS = {
    "VERSION_MISMATCH": "another version built it",
    "UNSUPPORTED_CC": "it is for another GPU",
    "OLD_CUDA_DRIVER": "the driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "CUDA_ERROR": "CUDA failed",
    "MALFORMED_ENGINE": "it is damaged",
}
_KINDS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT-RTX"}
_MAGIC, _SHORT, _HEADER = 4, 28, 64  # bytes: of the magic, up to and with the version, of all that is known of
_LONGEST_JSON = 1 << 20


class Loaded(msgspec.Struct, frozen=True):
    """An engine, and what has to live as long as it."""

    engine: Engine
    log: Log
    owners: tuple[object, ...]


def dla_core(order: Order) -> int | None:
    """The deep learning accelerator that an engine is for; None for the GPU."""
    return Options.parse(order.recipe.optimization, order.recipe.options).dla_core


def read_plan(order: Order, kind: str, version: str) -> bytes:
    """The plan of a built engine, of this kind and version of runtime; EngineUnusable or EngineDamaged."""
    if order.artefact is None:
        raise EngineUnusable("this engine has not been built yet")
    data = order.artefact.load(BLOB)
    header = read_header(data)
    options = Options.parse(order.recipe.optimization, order.recipe.options)
    require_version(header, kind, version, any_minor=options.version_compatible)
    return data[header.offset :] if header.offset else data


def deserialise(trt: Trt, data: bytes | memoryview, kind: str, dla_core: int | None = None) -> Loaded:
    """The engine in a plan, on the calling thread's current device; EngineUnusable with the runtime's reason.

    `dla_core` is the accelerator that an engine for one runs on: a plan says what for, and not where.

    Code in a plan is never run, so neither are plugins inside it.
    """
    log = Log()
    logger = listen(trt, log)
    plugins = find(trt, "init_libnvinfer_plugins")
    if callable(plugins):
        plugins(logger, "")  # the runtime's own
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
    """The device of a recipe ("cuda:0"); EngineUnusable if it cannot be opened."""
    try:
        return cuda.open_device(device_index(name))
    except Unsupported as error:
        raise EngineUnusable(str(error)) from error


def device_index(name: str) -> int:
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise EngineUnusable(f"TensorRT has engines for CUDA devices, not for {name}")
    return int(index or 0)


def _validity(trt: Trt, runtime: object, data: bytes | memoryview) -> str:
    """The reason why an engine is invalid, from runtimes that check this; empty if it is valid or they do not check."""
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
    """`kind` is "TensorRT" or "TensorRT-RTX". `version` has four numbers, each modulo 256 as the header keeps them;
    empty if the header does not report it. `size` is in bytes, None likewise. The plan begins at byte `offset`."""

    kind: str
    version: str
    size: int | None
    offset: int = 0


def read_header(data: bytes) -> Header:
    """The header of a plan; EngineUnusable if the data is not a plan, or is not complete."""
    offset = _after_json(data)
    kind = _KINDS.get(data[offset : offset + _MAGIC])
    if kind is None:
        raise EngineUnusable(f"the engine is no TensorRT plan: it begins with {data[:_MAGIC].hex(' ') or 'nothing'}")
    length = len(data) - offset
    if length < _HEADER:
        raise EngineUnusable(f"the engine is cut off: {length} bytes are not even a {kind} header")
    if any(data[offset + _MAGIC : offset + 2 * _MAGIC]):
        return Header(kind, "", None, offset)
    version = ".".join(str(number) for number in data[offset + _SHORT - 4 : offset + _SHORT])
    if data[offset + _SHORT : offset + _SHORT + _MAGIC] != data[offset : offset + _MAGIC]:
        return Header(kind, version, None, offset)
    size = int.from_bytes(data[offset + 16 : offset + 24], "little")
    if size != length:
        what = "is cut off" if length < size else "has something behind its end"
        raise EngineUnusable(f"the engine {what}: it has {length} bytes and its header says {size}")
    return Header(kind, version, size, offset)


def require_version(header: Header, kind: str, installed: str, *, any_minor: bool = False) -> None:
    """Requires that a plan is of this kind of runtime in this very version; with `any_minor` only the major counts.

    EngineUnusable says which version built it and which one is installed.
    """
    if header.kind != kind:
        raise EngineUnusable(f"the engine was built by {header.kind}, and {kind} cannot load it")
    built, here = _numbers(header.version), _numbers(installed)
    if any_minor:
        built, here = built[:1], here[:1]
    # Of a version with three numbers, as some packages have it, the three are compared.
    common = min(len(built), len(here))
    if built[:common] != here[:common]:
        raise EngineUnusable(
            f"the engine was built by {kind} {header.version}, and {installed} is installed; it will be rebuilt"
        )


def _after_json(data: bytes) -> int:
    """Where the plan begins: behind a JSON object with its length, if that is how the file begins."""
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
    """A session with the device that it is on, and what the runtime wants to live as long as its engine."""

    def __init__(self, loaded: Loaded, order: Order, device: Device) -> None:
        self._opened = loaded.owners
        self._owned: Device | None = None  # the caller's until all has gone well
        super().__init__(loaded.engine, order.signature, device, loaded.log.reason)
        self._owned = device

    def nodes(self) -> Nodes:
        """TensorRT runs an engine wholly or not at all; what a build for DLA left to the GPU its record says."""
        return {"TensorRT": {}}

    def close(self) -> None:
        with self._device.current():
            super().close()
            self._opened = ()
        if self._owned is not None:
            self._owned.close()


def open_engine(trt: Trt, kind: str, version: str, order: Order) -> OpenedSession:
    """As `Backend.open`, for a runtime of this kind and version."""
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
        # The frames hold engine and runtime, which must not outlive their device.
        for one in (error, error.__cause__):
            traceback.clear_frames(one.__traceback__ if one else None)
        raise
