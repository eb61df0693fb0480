"""Shared memory, traces and logs: from HTTP to gRPC's messages and back."""

from __future__ import annotations

import msgspec

from edged.api.http.calls import Calls
from edged.api.http.exchange import DONE, Answer, Ask, decoded, told, wanted
from edged.api.http.plain import fields
from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb


class _Region(msgspec.Struct, frozen=True):
    key: str
    byte_size: int
    offset: int = 0


class _Handle(msgspec.Struct, frozen=True):
    b64: str = ""


class _CudaRegion(msgspec.Struct, frozen=True):
    raw_handle: _Handle
    byte_size: int
    device_id: int = 0


async def system_regions(calls: Calls, ask: Ask, region: str) -> Answer:
    request = pb.SystemSharedMemoryStatusRequest(name=region)
    answer = await calls(ask, "SystemSharedMemoryStatus", request, pb.SystemSharedMemoryStatusResponse)
    return told([fields(answer.regions[name]) for name in sorted(answer.regions)])


async def register_system(calls: Calls, ask: Ask, region: str) -> Answer:
    said = wanted(ask.body, _Region, "the region")
    request = pb.SystemSharedMemoryRegisterRequest(
        name=region, key=said.key, offset=_size("offset", said.offset), byte_size=_size("byte_size", said.byte_size)
    )
    await calls(ask, "SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse)
    return DONE


async def unregister_system(calls: Calls, ask: Ask, region: str) -> Answer:
    request = pb.SystemSharedMemoryUnregisterRequest(name=region)
    await calls(ask, "SystemSharedMemoryUnregister", request, pb.SystemSharedMemoryUnregisterResponse)
    return DONE


async def cuda_regions(calls: Calls, ask: Ask, region: str) -> Answer:
    request = pb.CudaSharedMemoryStatusRequest(name=region)
    answer = await calls(ask, "CudaSharedMemoryStatus", request, pb.CudaSharedMemoryStatusResponse)
    return told([fields(answer.regions[name]) for name in sorted(answer.regions)])


async def register_cuda(calls: Calls, ask: Ask, region: str) -> Answer:
    said = wanted(ask.body, _CudaRegion, "the region")
    request = pb.CudaSharedMemoryRegisterRequest(
        name=region,
        raw_handle=decoded("raw_handle", said.raw_handle.b64),
        device_id=_size("device_id", said.device_id),
        byte_size=_size("byte_size", said.byte_size),
    )
    await calls(ask, "CudaSharedMemoryRegister", request, pb.CudaSharedMemoryRegisterResponse)
    return DONE


async def unregister_cuda(calls: Calls, ask: Ask, region: str) -> Answer:
    request = pb.CudaSharedMemoryUnregisterRequest(name=region)
    await calls(ask, "CudaSharedMemoryUnregister", request, pb.CudaSharedMemoryUnregisterResponse)
    return DONE


async def trace(calls: Calls, ask: Ask, model: str) -> Answer:
    """A setting that is null goes back to what it was before it was set."""
    request = pb.TraceSettingRequest(model_name=model)
    if ask.method == "POST":
        said = wanted(ask.body, dict[str, list[str] | str | int | None], "the trace settings")
        for name, value in said.items():
            words = [] if value is None else value if isinstance(value, list) else [str(value)]
            request.settings[name].value.extend(words)
    answer = await calls(ask, "TraceSetting", request, pb.TraceSettingResponse)
    return told({name: _words(name, list(answer.settings[name].value)) for name in sorted(answer.settings)})


async def logging(calls: Calls, ask: Ask) -> Answer:
    request = pb.LogSettingsRequest()
    if ask.method == "POST":
        said = wanted(ask.body, dict[str, bool | int | str], "the log settings")
        for name, value in said.items():
            if isinstance(value, bool):
                request.settings[name].bool_param = value
            elif isinstance(value, str):
                request.settings[name].string_param = value
            else:
                request.settings[name].uint32_param = _size(name, value, 32)
    answer = await calls(ask, "LogSettings", request, pb.LogSettingsResponse)
    choices = {name: next(iter(fields(answer.settings[name]).values()), "") for name in sorted(answer.settings)}
    return told(choices)


def _words(name: str, words: list[str]) -> list[str] | str:
    """Levels are a list, other settings one word."""
    return words[0] if name != "trace_level" and len(words) == 1 else words


def _size(key: str, value: int, bits: int = 63) -> int:
    if not 0 <= value < 1 << bits:
        raise InvalidInput(f"{key[:60]!r} is not a number from 0 to 2**{bits}")
    return value
