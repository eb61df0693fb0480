"""The gRPC statuses that each method may return for any request. UNKNOWN and INTERNAL are not allowed: they mean a bug
in edged. Pure."""

from __future__ import annotations

from typing import Final

import grpc

Codes = frozenset[grpc.StatusCode]
_S = grpc.StatusCode

_OK: Final = frozenset({_S.OK})
_WRONG = _OK | {_S.INVALID_ARGUMENT}
_NAMED = _WRONG | {_S.NOT_FOUND}
# Methods that need an engine: it may be loading, removed, at its limit, or too late.
_ENGINE = _NAMED | {_S.UNAVAILABLE, _S.RESOURCE_EXHAUSTED, _S.DEADLINE_EXCEEDED, _S.FAILED_PRECONDITION}
_COMMAND = _NAMED | {_S.FAILED_PRECONDITION, _S.UNAVAILABLE, _S.UNIMPLEMENTED}

_INFERENCE, _CAMERAS = "/inference.GRPCInferenceService/", "/edged.v1.Cameras/"
_OPERATIONS, _HEALTH = "/edged.v1.Operations/", "/grpc.health.v1.Health/"
_LANGUAGE = "/edged.v1.Language/"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/"

ALLOWED: Final[dict[str, Codes]] = {
    _INFERENCE + "ServerLive": _WRONG,
    _INFERENCE + "ServerReady": _WRONG,
    _INFERENCE + "ModelReady": _NAMED | {_S.UNAVAILABLE},
    _INFERENCE + "ServerMetadata": _WRONG,
    _INFERENCE + "ModelMetadata": _NAMED | {_S.UNAVAILABLE},
    _INFERENCE + "ModelConfig": _NAMED | {_S.UNAVAILABLE},
    _INFERENCE + "ModelStatistics": _NAMED | {_S.UNAVAILABLE},
    _INFERENCE + "ModelInfer": _ENGINE | {_S.UNIMPLEMENTED},
    _INFERENCE + "ModelStreamInfer": _ENGINE | {_S.UNIMPLEMENTED},
    _INFERENCE + "RepositoryIndex": _WRONG | {_S.UNIMPLEMENTED},
    _INFERENCE + "RepositoryModelLoad": _ENGINE | {_S.UNIMPLEMENTED, _S.ABORTED},
    _INFERENCE + "RepositoryModelUnload": _NAMED | {_S.UNIMPLEMENTED, _S.FAILED_PRECONDITION, _S.UNAVAILABLE},
    _INFERENCE + "SystemSharedMemoryStatus": _NAMED,
    _INFERENCE + "SystemSharedMemoryRegister": _NAMED
    | {_S.ALREADY_EXISTS, _S.RESOURCE_EXHAUSTED, _S.FAILED_PRECONDITION},
    _INFERENCE + "SystemSharedMemoryUnregister": _NAMED | {_S.FAILED_PRECONDITION},
    _INFERENCE + "CudaSharedMemoryStatus": _NAMED,
    _INFERENCE + "CudaSharedMemoryRegister": _WRONG | {_S.UNIMPLEMENTED},
    _INFERENCE + "CudaSharedMemoryUnregister": _NAMED,
    _INFERENCE + "TraceSetting": _NAMED | {_S.UNIMPLEMENTED, _S.UNAVAILABLE},
    _INFERENCE + "LogSettings": _WRONG,
    _CAMERAS + "Detect": _ENGINE,
    _LANGUAGE + "Chat": _ENGINE,
    _LANGUAGE + "LanguageModels": _WRONG,
    _CAMERAS + "DetectOne": _ENGINE | {_S.ABORTED},
    _OPERATIONS + "ListModels": _WRONG,
    _OPERATIONS + "ListPipelines": _WRONG,
    _OPERATIONS + "AddModel": _COMMAND | {_S.ALREADY_EXISTS, _S.RESOURCE_EXHAUSTED, _S.ABORTED},
    _OPERATIONS + "SetModel": _COMMAND | {_S.RESOURCE_EXHAUSTED, _S.ABORTED},
    _OPERATIONS + "RemoveModel": _COMMAND,
    _OPERATIONS + "RestoreModel": _COMMAND,
    _OPERATIONS + "ListEngines": _NAMED,
    _OPERATIONS + "ExplainEngine": _NAMED | {_S.UNAVAILABLE},
    **{_OPERATIONS + verb: _COMMAND for verb in ("Rebuild", "Verify", "Cancel", "Pin", "Unpin", "Evict")},
    _OPERATIONS + "GetStatus": _WRONG,
    _OPERATIONS + "GetLoad": _WRONG,
    _OPERATIONS + "GetDevice": _WRONG,
    _OPERATIONS + "RefreshDevice": _WRONG,
    _OPERATIONS + "Reload": _WRONG | {_S.FAILED_PRECONDITION},
    _OPERATIONS + "EngineReport": _COMMAND,
    _OPERATIONS + "ListCameras": _WRONG,
    _OPERATIONS + "AddCamera": _COMMAND | {_S.ALREADY_EXISTS, _S.RESOURCE_EXHAUSTED},
    _OPERATIONS + "SetCamera": _COMMAND | {_S.RESOURCE_EXHAUSTED},
    _OPERATIONS + "RemoveCamera": _COMMAND,
    _OPERATIONS + "AddToGallery": _ENGINE | {_S.ABORTED},
    _OPERATIONS + "ListGalleries": _WRONG,
    _OPERATIONS + "RemoveFromGallery": _COMMAND,
    _OPERATIONS + "CollectFrames": _COMMAND | {_S.RESOURCE_EXHAUSTED, _S.UNAVAILABLE},
    **{_OPERATIONS + name: _COMMAND for name in ("StopCollecting", "RemoveFrames")},
    _OPERATIONS + "ListFrames": _NAMED,
    _OPERATIONS + "WatchPictures": _NAMED | {_S.UNAVAILABLE},
    _OPERATIONS + "TryModel": _COMMAND | {_S.RESOURCE_EXHAUSTED, _S.ABORTED},
    _OPERATIONS + "WatchEvents": _WRONG,
    _HEALTH + "Check": _NAMED,
    _HEALTH + "Watch": _WRONG,
    _REFLECTION + "ServerReflectionInfo": _WRONG,
}

# Over a connection, a call may also fail by the address's access rules, a limit, a deadline, or a closed connection.
OF_A_CONNECTION: Final = frozenset(
    {
        _S.RESOURCE_EXHAUSTED,
        _S.CANCELLED,
        _S.DEADLINE_EXCEEDED,
        _S.UNAVAILABLE,
        _S.UNAUTHENTICATED,
        _S.FAILED_PRECONDITION,
    }
)
