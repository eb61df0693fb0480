"""The errors edged raises on purpose, one class for each thing that can go wrong.

Every message is one line: what happened, to what, and what to do next. Classes carry no protocol codes; the gRPC
status of each is chosen in one table, `edged.api.grpc.status`.
"""

from __future__ import annotations

from collections.abc import Mapping


class EdgedError(Exception):
    """Base of everything edged raises deliberately; `str()` is the one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def message(self) -> str:
        return str(self)


class InvalidInput(EdgedError):
    """The caller sent something wrong: a shape, a dtype, an unknown tensor, an undecodable picture."""


class ConfigError(InvalidInput):
    """A setting is unknown, of the wrong type or out of range."""


class ModelRefused(InvalidInput):
    """A model file that cannot be served: unreadable, incomplete, or with operators that no runtime here has.

    `finding` are the fields of the `edged.models.finding.Finding` behind it, where there is one.
    """

    def __init__(self, message: str, finding: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.finding = dict(finding or {})


class NotFound(EdgedError):
    """A model, version, engine or file that does not exist."""


class AlreadyExists(EdgedError):
    """A name that is taken."""


class NotReady(EdgedError):
    """A model that exists but has no engine that can answer now."""


class Overloaded(EdgedError):
    """A bounded queue or buffer is full."""


class Unauthenticated(EdgedError):
    """A caller who shows nothing that proves who it is, or something that is wrong."""


class Forbidden(EdgedError):
    """A caller who is known and may not do that."""


class ClientLimited(Overloaded):
    """A client that has more under way than one may have. `seconds` until another try may do better."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TooLarge(EdgedError):
    """A message, or the outputs of a request, larger than a configured limit."""


class DeadlineExceeded(EdgedError):
    """The caller's deadline, or the time that a request of the model may take, passed before an answer was ready."""


class FrameSkipped(EdgedError):
    """A frame that was not answered and is none the worse for it: its stream counts it. `reason` is one word."""

    reason = "skipped"


class Stale(FrameSkipped):
    """A frame that was older than its camera allows when its turn came."""

    reason = "stale"


class Overwritten(FrameSkipped):
    """A frame in shared memory whose place the client used again before its turn came."""

    reason = "overwritten"


class SegmentUnusable(EdgedError):
    """Shared memory of a client that the daemon cannot read, now or later; the client sends bytes instead."""


class HostLost(EdgedError):
    """The engine host died or hung while it held this work. `is_outside`: it was killed by a signal that some process
    sent, or by the kernel for want of memory."""

    def __init__(self, message: str, *, is_outside: bool = False) -> None:
        super().__init__(message)
        self.is_outside = is_outside


class Quarantined(EdgedError):
    """A model whose work kept killing its engine host; an operator decides when it is tried again."""


class EngineDamaged(EdgedError):
    """A stored engine that does not match its record."""


class EngineUnusable(EdgedError):
    """A runtime refused to build, open or run an engine."""


class BuildFailed(EdgedError):
    """A build or verification child ended without an engine: an error, a time or memory limit, a crash."""


class NotTaken(EngineUnusable):
    """A model that a runtime does not take. `why` is a word for programs: "refused", "unknown_operator",
    "unknown_domain", "not_implemented", "shape_outside" (a shape in external data) or "too_much_memory"; `operator` and
    `node` are what it is about, as far as the runtime tells."""

    def __init__(self, message: str, why: str = "refused", operator: str = "", node: str = "") -> None:
        super().__init__(message)
        self.why, self.operator, self.node = why, operator, node


class OutOfMemory(EngineUnusable):
    """A device, or an engine host, had no memory for an engine or a request, which says nothing against the engine."""


class NotFinite(EngineUnusable):
    """An answer with NaN or infinity in `outputs`, of a model whose settings refuse such answers."""

    def __init__(self, message: str, outputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.outputs = outputs


class WrongAnswers(EngineUnusable):
    """An engine whose answers are too far from the reference's."""


class Unsuitable(EngineUnusable):
    """A backend that cannot keep a model's promises whatever is tried: another attempt would end the same."""


class WarmupFailed(EngineUnusable):
    """A request that a model's configuration wants made before an engine serves; another try would end the same."""


class OutOfSpace(EdgedError):
    """An engine that does not fit on the disk or into its budget, even if everything gave way that may; or a disk that
    does not read or write. That says nothing against a model or an engine."""


class DiskFailing(OutOfSpace):
    """A disk that reports errors of its own when it is read or written."""


class Refused(EdgedError):
    """A command that makes no sense in the state that things are in."""


class Superseded(EdgedError):
    """Libraries or files on disk changed under a piece of work: its outcome belongs to nothing known and is void."""


class Unsupported(EdgedError):
    """Something this box or this build of edged cannot do."""
