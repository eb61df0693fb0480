"""The one table of who may call what. Pure.

A method that is not in it may be called by nobody; a test sees to it that every one that is registered is.
"""

from __future__ import annotations

from typing import Final

from edged.api.auth.callers import Caller
from edged.api.auth.roles import NONE, Roles, told
from edged.errors import EdgedError, Forbidden, Unauthenticated

# Whoever reaches the address: probes have no secret, and learn no more than whether there is an answer.
ANYBODY: Final[Roles | None] = None
OPERATE: Final[Roles] = frozenset({"operate"})
READ: Final[Roles] = frozenset({"read", "operate"})
INFER: Final[Roles] = frozenset({"infer", "operate"})
# What clients ask before their first request, and whoever looks.
KNOW: Final[Roles] = INFER | READ

_CAMERAS, _OPERATIONS = "/edged.v1.Cameras/", "/edged.v1.Operations/"
INFERENCE: Final = "/inference.GRPCInferenceService/"
_HEALTH = "/grpc.health.v1.Health/"

NOBODY: Final[Roles] = NONE

METHODS: Final[dict[str, Roles | None]] = {
    _HEALTH + "Check": ANYBODY,
    _HEALTH + "Watch": ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KNOW,
    _CAMERAS + "Detect": INFER,
    _CAMERAS + "DetectOne": INFER,
    INFERENCE + "ServerLive": ANYBODY,
    INFERENCE + "ServerReady": ANYBODY,
    INFERENCE + "ModelReady": ANYBODY,
    INFERENCE + "ServerMetadata": KNOW,
    INFERENCE + "ModelMetadata": KNOW,
    INFERENCE + "ModelConfig": KNOW,
    INFERENCE + "RepositoryIndex": KNOW,
    INFERENCE + "ModelStatistics": KNOW,
    INFERENCE + "ModelInfer": INFER,
    INFERENCE + "ModelStreamInfer": INFER,
    # Regions are how requests come and go; which clients have them is a question of the machine as well.
    INFERENCE + "SystemSharedMemoryStatus": INFER,
    INFERENCE + "SystemSharedMemoryRegister": INFER,
    INFERENCE + "SystemSharedMemoryUnregister": INFER,
    INFERENCE + "CudaSharedMemoryStatus": INFER,
    INFERENCE + "CudaSharedMemoryRegister": INFER,
    INFERENCE + "CudaSharedMemoryUnregister": INFER,
    INFERENCE + "RepositoryModelLoad": OPERATE,
    INFERENCE + "RepositoryModelUnload": OPERATE,
    # Reading and changing these is one method.
    INFERENCE + "TraceSetting": OPERATE,
    INFERENCE + "LogSettings": OPERATE,
    _OPERATIONS + "ListModels": READ,
    _OPERATIONS + "ListEngines": READ,
    _OPERATIONS + "ExplainEngine": READ,
    _OPERATIONS + "GetStatus": READ,
    _OPERATIONS + "GetLoad": READ,
    _OPERATIONS + "GetDevice": READ,
    _OPERATIONS + "ListCameras": READ,
    _OPERATIONS + "WatchEvents": READ,
    _OPERATIONS + "AddModel": OPERATE,
    _OPERATIONS + "RemoveModel": OPERATE,
    _OPERATIONS + "Rebuild": OPERATE,
    _OPERATIONS + "Verify": OPERATE,
    _OPERATIONS + "Cancel": OPERATE,
    _OPERATIONS + "Pin": OPERATE,
    _OPERATIONS + "Unpin": OPERATE,
    _OPERATIONS + "Evict": OPERATE,
    _OPERATIONS + "RefreshDevice": OPERATE,
    _OPERATIONS + "Reload": OPERATE,
}


def refusal(method: str, caller: Caller) -> EdgedError | None:
    """Why a caller may not call a method, such as `/edged.v1.Cameras/Detect`; None where it may."""
    if caller.problem:  # also where anybody may: whoever shows a wrong secret wants to know
        return Unauthenticated(caller.problem)
    needed = METHODS.get(method, NOBODY)
    if needed is None or caller.roles & needed:
        return None
    name = method.rpartition("/")[2]
    if not caller.roles and not caller.is_known:
        return Unauthenticated(f"{name} is not for everybody here; send a token (EDGED_TOKEN){caller.remedy}")
    least = _least(needed)
    has = f"{caller.name} has {told(caller.roles)}" if caller.roles else f"{caller.name} has no role here"
    return Forbidden(f"{name} needs the role {least}, and {has}{caller.remedy}")


def is_audited(method: str) -> bool:
    """Whether it is written down who called it."""
    return METHODS.get(method, OPERATE) == OPERATE


def _least(needed: Roles) -> str:
    """What a caller would be given for it."""
    return " or ".join(role for role in ("infer", "read") if role in needed) or "operate"
