"""Why a stream of results is over; the same for the blocking and the asynchronous one."""

from __future__ import annotations

import grpc

from edged.client.ledger import Ledger
from edged.client.status import from_rpc_error
from edged.errors import DeadlineExceeded, EdgedError, NotReady


def of_failure(error: grpc.RpcError, ledger: Ledger, target: str, patience: float) -> EdgedError:
    """For a call that failed."""
    return silence(target, patience) if ledger.gave_up else from_rpc_error(error, target)


def of_completion(failure: Exception | None, exhausted: bool, target: str) -> Exception | None:
    """For a call that ended well: what the user's frames raised, or None where all is as it should be."""
    if failure is None and not exhausted:
        return NotReady(f"the edged daemon at {target} ended the stream before its frames did; open it again")
    return failure


def silence(target: str, patience: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the edged daemon at {target} answered no frame for {patience:g} s; see what it does: edged events"
    )
