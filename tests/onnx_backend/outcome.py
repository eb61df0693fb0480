"""The outcome of a case: in ONNX Runtime itself, in the daemon, and whether the daemon is at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tests.onnx_backend.cases import Case, Exchange, differs
from tests.onnx_backend.reference import Reference
from tests.onnx_backend.served import Server


@dataclass(frozen=True)
class Outcome:
    """One line for each kind of failure; empty if there was none."""

    case: Case
    untransportable: str = ""
    runtime: str = ""
    served: str = ""

    @property
    def is_fault(self) -> bool:
        """True if ONNX Runtime is right and the daemon is not."""
        return bool(not self.untransportable and not self.runtime and self.served)


def judge(case: Case, server: Server) -> Outcome:
    """Run a case in ONNX Runtime and in the daemon, unless the protocol cannot carry it."""
    if case.untransportable:
        return Outcome(case, untransportable=case.untransportable)
    if any(array is None for each in case.exchanges for array in (*each.inputs, *each.outputs)):
        return Outcome(case, untransportable="a value that is not a tensor")
    return Outcome(
        case, runtime=_asked(case, lambda: Reference(case).answers), served=_asked(case, lambda: _of(case, server))
    )


def _of(case: Case, server: Server) -> Callable[[Exchange], list[Any]]:
    return lambda exchange: server.answers(case, exchange)


def _asked(case: Case, opened: Callable[[], Callable[[Exchange], list[Any]]]) -> str:
    try:
        ask = opened()
        for exchange in case.exchanges:
            answers = ask(exchange)
            pairs = zip(case.model.graph.output, answers, exchange.outputs, strict=True)
            wrong = [
                f"output {entry.name!r}: {how}" for entry, got, wanted in pairs if (how := differs(got, wanted, case))
            ]
            if wrong:
                return wrong[0]
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    except Exception as error:
        return f"{type(error).__name__}: {_short(str(error))}"
    return ""


def _short(message: str) -> str:
    """Shorten a message of the runtime to the text after its source locations."""
    words = " ".join(message.split())
    return words.rpartition("::")[2].partition(") ")[2][:140] or words[:140]
