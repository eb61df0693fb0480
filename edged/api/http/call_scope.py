"""The context of every call over HTTP: its client's limits, the validity of its credentials, and the audit log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping

from edged.api.auth import identity, policy
from edged.api.auth.guard import Guard
from edged.api.auth.limits import LARGE, LargeMessage
from edged.api.auth.policy import Caller
from edged.api.grpc.status import describe


@contextlib.asynccontextmanager
async def call_scope(
    guard: Guard, rpc: str, who: Caller, peer: str, size: int, about: Mapping[str, str], *, is_stream: bool = False
) -> AsyncGenerator[None, None]:
    """Open the context in which a call runs. `rpc` is the path of the method in gRPC, `size` the bytes of the body. If
    the method needs the role `operate`, the audit log records the call, with the fields `about`. `is_stream`: the
    answer is a stream.

    Raises ClientLimited. Cancels the call when its client's credentials become invalid or lose a role. Cancels a stream
    also when the address no longer grants the client the role.
    """
    identity.CURRENT.set(who)
    usage = guard.limits.usage(who.key, who.name, time.monotonic())
    guard.limits.request(usage, size, time.monotonic())
    began, outcome, message = time.perf_counter(), "CANCELLED", ""
    large = LargeMessage(guard.budget, peer, who)
    try:
        if size >= LARGE:
            await large.begin(size)
        with guard.watched(who, rpc, is_stream=is_stream):
            yield
        outcome = "OK"
    except Exception as error:
        code, message = describe(error)
        outcome = code.name
        raise
    finally:
        large.end()
        guard.limits.end(usage, size)
        if policy.is_audited(rpc):
            guard.record(rpc, who, peer, dict(about), outcome, message, began)
