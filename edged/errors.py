"""edged's errors: one class for each kind of failure, each with a stable code.

Every message is one line: what failed, on what, and what to do next. Messages may change; codes do not. Classes have no
protocol codes: `edged.api.grpc.status` maps them to gRPC statuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum


class ErrorCode(str, Enum):
    """The kind of an error, for programs. Clients compare the names: add codes, never rename one (docs/errors.md)."""

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
    FAMILY_FAILED = "FAMILY_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    OUTPUT_NOT_FINITE = "OUTPUT_NOT_FINITE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DISK_FULL = "DISK_FULL"
    DISK_FAILING = "DISK_FAILING"
    SUPERSEDED = "SUPERSEDED"


class EdgedError(Exception):
    """Base of edged's errors. `str()` is one line for the user; `code` is for programs.

    A subclass gives its code: `class NotFound(EdgedError, code=ErrorCode.NOT_FOUND)`.
    """

    code = ErrorCode.INTERNAL

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        cls.code = code or cls.code

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def message(self) -> str:
        return str(self)


class InvalidInput(EdgedError, code=ErrorCode.INVALID_REQUEST):
    """An invalid request, such as a wrong shape or dtype, an unknown tensor or an undecodable picture."""


class InvalidTensor(InvalidInput, code=ErrorCode.INVALID_TENSOR):
    """A tensor of a request whose name, datatype, shape or contents do not fit the model."""


class InvalidImage(InvalidInput, code=ErrorCode.INVALID_IMAGE):
    """A picture that cannot be decoded, or whose size or format is impossible."""


class ConfigError(InvalidInput, code=ErrorCode.INVALID_CONFIG):
    """A setting that is unknown, of the wrong type or out of range."""


class ModelRefused(InvalidInput, code=ErrorCode.MODEL_REJECTED):
    """A model file that cannot be served: unreadable, incomplete, or with operators that no runtime of this box has.

    `finding` has the fields of the `edged.models.finding.Finding` that caused the refusal, if any.
    """

    def __init__(self, message: str, finding: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.finding = dict(finding or {})


class NotFound(EdgedError, code=ErrorCode.NOT_FOUND):
    """Something that does not exist, such as a model, an engine, a camera or a file."""


class ModelNotFound(NotFound, code=ErrorCode.MODEL_NOT_FOUND):
    """A model that does not exist, or a version that a model does not have."""


class AlreadyExists(EdgedError, code=ErrorCode.ALREADY_EXISTS):
    """A name that is already in use."""


class NotReady(EdgedError, code=ErrorCode.MODEL_NOT_READY):
    """A model that exists but has no engine that can answer now."""


class DaemonUnavailable(NotReady, code=ErrorCode.DAEMON_UNAVAILABLE):
    """A daemon that does not answer at the client's address, or whose connection ended. Also a server of models or a
    shared store that cannot be used now."""


class Overloaded(EdgedError, code=ErrorCode.OVERLOADED):
    """A bounded queue or buffer is full."""


class Unauthenticated(EdgedError, code=ErrorCode.UNAUTHENTICATED):
    """A caller without credentials, or with wrong credentials."""


class Forbidden(EdgedError, code=ErrorCode.PERMISSION_DENIED):
    """A known caller without the required permission."""


class ClientLimited(Overloaded, code=ErrorCode.CLIENT_LIMIT_EXCEEDED):
    """A client exceeded its limit of streams, of running requests, of their bytes, or of requests per second.
    `seconds`: how long to wait before a retry."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TooLarge(EdgedError, code=ErrorCode.SIZE_LIMIT_EXCEEDED):
    """A message, or the outputs of a request, larger than a configured limit."""


class DeadlineExceeded(EdgedError, code=ErrorCode.DEADLINE_EXCEEDED):
    """The caller's deadline, or the model's time limit for requests, passed before an answer was ready. Also a large
    request that arrived too slowly."""


class FrameSkipped(EdgedError, code=ErrorCode.FRAME_SKIPPED):
    """A frame that the daemon skipped and counted instead of answering it. `reason` is one word."""

    reason = "skipped"


class Stale(FrameSkipped):
    """A frame that was older than its camera's max_staleness when its turn came."""

    reason = "stale"


class Overwritten(FrameSkipped):
    """A frame in shared memory whose slot the client reused before the frame's turn came."""

    reason = "overwritten"


class SegmentUnusable(EdgedError, code=ErrorCode.SHARED_MEMORY_UNUSABLE):
    """The daemon cannot read the client's shared memory, and a retry does not help. The client then sends bytes."""


class HostLost(EdgedError, code=ErrorCode.ENGINE_HOST_LOST):
    """The host of an engine or of a language model died or hung while it processed a request. `is_outside`: another
    process killed the host, or the kernel killed it for lack of memory."""

    def __init__(self, message: str, *, is_outside: bool = False) -> None:
        super().__init__(message)
        self.is_outside = is_outside


class Quarantined(EdgedError, code=ErrorCode.MODEL_QUARANTINED):
    """A model that killed its engine host repeatedly; an operator decides when it is tried again."""


class EngineDamaged(EdgedError, code=ErrorCode.ENGINE_CORRUPT):
    """A stored engine that does not match its record."""


class EngineUnusable(EdgedError, code=ErrorCode.ENGINE_FAILED):
    """An engine that a runtime refused to build, open or run."""


class BuildFailed(EdgedError, code=ErrorCode.BUILD_FAILED):
    """A child that builds, verifies or exports ended without a result, because of an error, a crash, or a limit of time
    or memory."""


class NotTaken(EngineUnusable, code=ErrorCode.MODEL_UNSUPPORTED):
    """A runtime does not support the model. `why` is a word for programs: "refused", "unknown_operator",
    "unknown_domain", "not_implemented", "shape_outside" (a shape in external data) or "too_much_memory". `operator` and
    `node` name the unsupported part, if the runtime reports it."""

    def __init__(self, message: str, why: str = "refused", operator: str = "", node: str = "") -> None:
        super().__init__(message)
        self.why, self.operator, self.node = why, operator, node


class OutOfMemory(EngineUnusable, code=ErrorCode.OUT_OF_MEMORY):
    """A device or engine host without enough memory for an engine or a request; the engine itself may be good."""


class FamilyFailed(EngineUnusable, code=ErrorCode.FAMILY_FAILED):
    """A model family, from a package other than edged, failed. Its code could not be loaded or used, raised an
    exception, or returned something invalid. The message names the package; `family` is the name of the family, if
    known."""

    def __init__(self, message: str, family: str = "") -> None:
        super().__init__(message)
        self.family = family


class NotFinite(EngineUnusable, code=ErrorCode.OUTPUT_NOT_FINITE):
    """An answer with NaN or infinity in `outputs`, from a model whose settings refuse these values."""

    def __init__(self, message: str, outputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.outputs = outputs


class WrongAnswers(EngineUnusable, code=ErrorCode.ENGINE_REJECTED):
    """An engine whose answers are too far from the reference's."""


class Unsuitable(EngineUnusable, code=ErrorCode.ENGINE_REJECTED):
    """A backend that cannot serve a model as the model's settings demand; another attempt would fail too."""


class WarmupFailed(EngineUnusable, code=ErrorCode.ENGINE_REJECTED):
    """A warmup request, from a model's configuration, that failed; another attempt would fail too."""


class OutOfSpace(EdgedError, code=ErrorCode.DISK_FULL):
    """An engine or other data does not fit on the disk, an engine does not fit within `engines.budget_mb` even after
    all allowed evictions, or the disk cannot be read or written. The model and the engine may be fine."""


class DiskFailing(OutOfSpace, code=ErrorCode.DISK_FAILING):
    """A disk that reports errors when it is read or written."""


class Refused(EdgedError, code=ErrorCode.FAILED_PRECONDITION):
    """A command that is not possible in the current state."""


class Superseded(EdgedError, code=ErrorCode.SUPERSEDED):
    """Work whose result is void, because libraries or files changed meanwhile."""


class Unsupported(EdgedError, code=ErrorCode.UNSUPPORTED):
    """This box or this version of edged cannot do what was requested."""


def rebuild(name: str, message: str, otherwise: type[EdgedError] = EngineUnusable) -> EdgedError:
    """Return an error that another process sent as the name of its class and its message. If edged has no class with
    this name, return an error of the class `otherwise`."""
    kind = globals().get(name)
    return (kind if isinstance(kind, type) and issubclass(kind, EdgedError) else otherwise)(message)


def either(words: Iterable[str]) -> str:
    """Join words as `a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


_USER = re.compile(
    r"//[^\s/?#]*@"  # valid in a URL
    r"|//[^\s/:@]+:(?!\d+/)\S*@"  # a password with an unescaped slash, ? or #, which people type
)
_QUERY = re.compile(
    r"(?i)([?&;](?:[a-z]+[_-])?(?:user(?:name|id)?|usr|login(?:use|pas)?|pass(?:word|wd)?|pwd|psw|(?:auth)?token|auth"
    r"|(?:api)?key|secret|sig(?:nature)?)="
    r"|/user=)[^&#\s'\"]*"  # some cameras have it in the path, such as /user=me_password=secret_channel=1
)


def redact(text: str) -> str:
    """Return a text without the users, passwords and secret query values in its URLs."""
    return _QUERY.sub(r"\1***", _USER.sub("//", text))
