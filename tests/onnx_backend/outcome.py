"""What became of a case: by ONNX Runtime itself, by the daemon, and what that says about the daemon."""

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
    """One line each of what went wrong; empty where nothing did."""

    case: Case
    untransportable: str = ""
    runtime: str = ""
    served: str = ""

    @property
    def is_fault(self) -> bool:
        """What the runtime does right, and the daemon does not."""
        return bool(not self.untransportable and not self.runtime and self.served)


def judge(case: Case, server: Server) -> Outcome:
    """Asks both. A case that the protocol cannot carry is asked of nobody."""
    if case.untransportable:
        return Outcome(case, untransportable=case.untransportable)
    if any(array is None for each in case.exchanges for array in (*each.inputs, *each.outputs)):
        return Outcome(case, untransportable="a value that is no tensor")
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
    """Of the runtime's words those after its own places in its sources."""
    words = " ".join(message.split())
    return words.rpartition("::")[2].partition(") ")[2][:140] or words[:140]
