"""The errors that edged raises on purpose: one class for each kind of failure, each with a stable code.

Every message is one line: what happened, to what, and what to do next. Messages may change; codes do not. Classes carry
no protocol codes: `edged.api.grpc.status` chooses the gRPC status of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ErrorCode(str, Enum):
    """What went wrong, for programs. Clients compare the names: add codes, never rename one (docs/errors.md)."""

    INTERNAL = "INTERNAL"
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_TENSOR = "INVALID_TENSOR"
    INVALID_IMAGE = "INVALID_IMAGE"
    INVALID_CONFIG = "INVALID_CONFIG"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_FOUND = "NOT_FOUND"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    UNSUPPORTED = "UNSUPPORTED"
    DAEMON_UNAVAILABLE = "DAEMON_UNAVAILABLE"
    MODEL_NOT_READY = "MODEL_NOT_READY"
    MODEL_REJECTED = "MODEL_REJECTED"
    MODEL_UNSUPPORTED = "MODEL_UNSUPPORTED"
    MODEL_QUARANTINED = "MODEL_QUARANTINED"
    OVERLOADED = "OVERLOADED"
    CLIENT_LIMIT_EXCEEDED = "CLIENT_LIMIT_EXCEEDED"
    SIZE_LIMIT_EXCEEDED = "SIZE_LIMIT_EXCEEDED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    FRAME_SKIPPED = "FRAME_SKIPPED"
    SHARED_MEMORY_UNUSABLE = "SHARED_MEMORY_UNUSABLE"
    ENGINE_HOST_LOST = "ENGINE_HOST_LOST"
    ENGINE_FAILED = "ENGINE_FAILED"
    ENGINE_REJECTED = "ENGINE_REJECTED"
    ENGINE_CORRUPT = "ENGINE_CORRUPT"
    BUILD_FAILED = "BUILD_FAILED"
    OUTPUT_NOT_FINITE = "OUTPUT_NOT_FINITE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DISK_FULL = "DISK_FULL"
    DISK_FAILING = "DISK_FAILING"
    SUPERSEDED = "SUPERSEDED"


class EdgedError(Exception):
    """Base of everything edged raises deliberately; `str()` is the one line for the user, `code` is for programs."""

    code = ErrorCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def message(self) -> str:
        return str(self)


class InvalidInput(EdgedError):
    """The caller sent something wrong: a shape, a dtype, an unknown tensor, an undecodable picture."""

    code = ErrorCode.INVALID_REQUEST


class InvalidTensor(InvalidInput):
    """A tensor of a request whose name, datatype, shape or contents are not what the model takes."""

    code = ErrorCode.INVALID_TENSOR


class InvalidImage(InvalidInput):
    """A picture that cannot be decoded, or whose size or format is impossible."""

    code = ErrorCode.INVALID_IMAGE


class ConfigError(InvalidInput):
    """A setting is unknown, of the wrong type or out of range."""

    code = ErrorCode.INVALID_CONFIG


class ModelRefused(InvalidInput):
    """A model file that cannot be served: unreadable, incomplete, or with operators that no runtime here has.

    `finding` are the fields of the `edged.models.finding.Finding` behind it, where there is one.
    """

    code = ErrorCode.MODEL_REJECTED

    def __init__(self, message: str, finding: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.finding = dict(finding or {})


class NotFound(EdgedError):
    """A model, version, engine or file that does not exist."""

    code = ErrorCode.NOT_FOUND


class ModelNotFound(NotFound):
    """A model, or a version of one, that does not exist."""

    code = ErrorCode.MODEL_NOT_FOUND


class AlreadyExists(EdgedError):
    """A name that is taken."""

    code = ErrorCode.ALREADY_EXISTS


class NotReady(EdgedError):
    """A model that exists but has no engine that can answer now."""

    code = ErrorCode.MODEL_NOT_READY


class DaemonUnavailable(NotReady):
    """No daemon answers at the address that a client calls, or the connection to it ended."""

    code = ErrorCode.DAEMON_UNAVAILABLE


class Overloaded(EdgedError):
    """A bounded queue or buffer is full."""

    code = ErrorCode.OVERLOADED


class Unauthenticated(EdgedError):
    """A caller who shows nothing that proves who it is, or something that is wrong."""

    code = ErrorCode.UNAUTHENTICATED


class Forbidden(EdgedError):
    """A caller who is known and may not do that."""

    code = ErrorCode.PERMISSION_DENIED


class ClientLimited(Overloaded):
    """A client that has more under way than one may have. `seconds` until another try may do better."""

    code = ErrorCode.CLIENT_LIMIT_EXCEEDED

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TooLarge(EdgedError):
    """A message, or the outputs of a request, larger than a configured limit."""

    code = ErrorCode.SIZE_LIMIT_EXCEEDED


class DeadlineExceeded(EdgedError):
    """The caller's deadline, or the time that a request of the model may take, passed before an answer was ready."""

    code = ErrorCode.DEADLINE_EXCEEDED


class FrameSkipped(EdgedError):
    """A frame that was not answered and is none the worse for it: its stream counts it. `reason` is one word."""

    code = ErrorCode.FRAME_SKIPPED

    reason = "skipped"


class Stale(FrameSkipped):
    """A frame that was older than its camera allows when its turn came."""

    reason = "stale"


class Overwritten(FrameSkipped):
    """A frame in shared memory whose place the client used again before its turn came."""

    reason = "overwritten"


class SegmentUnusable(EdgedError):
    """Shared memory of a client that the daemon cannot read, now or later; the client sends bytes instead."""

    code = ErrorCode.SHARED_MEMORY_UNUSABLE


class HostLost(EdgedError):
    """The engine host died or hung while it held this work. `is_outside`: it was killed by a signal that some process
    sent, or by the kernel for want of memory."""

    code = ErrorCode.ENGINE_HOST_LOST

    def __init__(self, message: str, *, is_outside: bool = False) -> None:
        super().__init__(message)
        self.is_outside = is_outside


class Quarantined(EdgedError):
    """A model whose work kept killing its engine host; an operator decides when it is tried again."""

    code = ErrorCode.MODEL_QUARANTINED


class EngineDamaged(EdgedError):
    """A stored engine that does not match its record."""

    code = ErrorCode.ENGINE_CORRUPT


class EngineUnusable(EdgedError):
    """A runtime refused to build, open or run an engine."""

    code = ErrorCode.ENGINE_FAILED


class BuildFailed(EdgedError):
    """A build or verification child ended without an engine: an error, a time or memory limit, a crash."""

    code = ErrorCode.BUILD_FAILED


class NotTaken(EngineUnusable):
    """A model that a runtime does not take. `why` is a word for programs: "refused", "unknown_operator",
    "unknown_domain", "not_implemented", "shape_outside" (a shape in external data) or "too_much_memory"; `operator` and
    `node` are what it is about, as far as the runtime tells."""

    code = ErrorCode.MODEL_UNSUPPORTED

    def __init__(self, message: str, why: str = "refused", operator: str = "", node: str = "") -> None:
        super().__init__(message)
        self.why, self.operator, self.node = why, operator, node


class OutOfMemory(EngineUnusable):
    """A device, or an engine host, had no memory for an engine or a request, which says nothing against the engine."""

    code = ErrorCode.OUT_OF_MEMORY


class NotFinite(EngineUnusable):
    """An answer with NaN or infinity in `outputs`, of a model whose settings refuse such answers."""

    code = ErrorCode.OUTPUT_NOT_FINITE

    def __init__(self, message: str, outputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.outputs = outputs


class WrongAnswers(EngineUnusable):
    """An engine whose answers are too far from the reference's."""

    code = ErrorCode.ENGINE_REJECTED


class Unsuitable(EngineUnusable):
    """A backend that cannot keep a model's promises whatever is tried: another attempt would end the same."""

    code = ErrorCode.ENGINE_REJECTED


class WarmupFailed(EngineUnusable):
    """A request that a model's configuration wants made before an engine serves; another try would end the same."""

    code = ErrorCode.ENGINE_REJECTED


class OutOfSpace(EdgedError):
    """An engine that does not fit on the disk or into its budget, even if everything gave way that may; or a disk that
    does not read or write. That says nothing against a model or an engine."""

    code = ErrorCode.DISK_FULL


class DiskFailing(OutOfSpace):
    """A disk that reports errors of its own when it is read or written."""

    code = ErrorCode.DISK_FAILING


class Refused(EdgedError):
    """A command that makes no sense in the state that things are in."""

    code = ErrorCode.FAILED_PRECONDITION


class Superseded(EdgedError):
    """Libraries or files on disk changed under a piece of work: its outcome belongs to nothing known and is void."""

    code = ErrorCode.SUPERSEDED


class Unsupported(EdgedError):
    """Something this box or this build of edged cannot do."""

    code = ErrorCode.UNSUPPORTED
