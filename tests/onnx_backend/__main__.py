"""Serve every case of the installed `onnx`; compare the answers with ONNX Runtime's and with the expected ones.

exit status: 0 if the daemon is right wherever ONNX Runtime is, 1 otherwise
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.integration.daemon import Daemon
from tests.onnx_backend.cases import KINDS, Case, cases
from tests.onnx_backend.outcome import Outcome, judge
from tests.onnx_backend.served import Server, placed

_TOGETHER = 60  # models in the daemon at a time
_ASKED = 4  # cases at a time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="a kind of cases (default: all)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth case")
    parser.add_argument("--match", default="", metavar="TEXT", help="only cases with this in their names")
    arguments = parser.parse_args()
    began = time.monotonic()
    wanted = [case for case in cases(tuple(arguments.kind or KINDS)) if arguments.match in case.name]
    with Daemon() as daemon:
        server = Server(daemon.unix)
        outcomes = list(_outcomes(wanted[:: arguments.every], daemon, server))
        server.close()
    _show(outcomes)
    print(f"{len(outcomes)} cases, {time.monotonic() - began:.0f} s")
    return int(any(outcome.is_fault for outcome in outcomes))


def _outcomes(wanted: Sequence[Case], daemon: Daemon, server: Server) -> Iterator[Outcome]:
    carried = [case for case in wanted if not case.untransportable]
    yield from (Outcome(case, case.untransportable) for case in wanted if case.untransportable)
    with ThreadPoolExecutor(_ASKED) as threads:
        for start in range(0, len(carried), _TOGETHER):
            part = carried[start : start + _TOGETHER]
            with placed(part, daemon):
                yield from threads.map(lambda case: judge(case, server), part)
            print(f"{start + len(part)} of {len(carried)}", file=sys.stderr, flush=True)


def _show(outcomes: Sequence[Outcome]) -> None:
    carried = [outcome for outcome in outcomes if not outcome.untransportable]
    answered = [outcome for outcome in carried if not outcome.runtime]
    served = [outcome for outcome in carried if not outcome.served]
    faults = [outcome for outcome in carried if outcome.is_fault]
    print(f"the protocol carries {len(carried)} of {len(outcomes)}; the others by type:")
    for what, count in Counter(o.untransportable for o in outcomes if o.untransportable).most_common():
        print(f"  {what}: {count}")
    print(f"as expected: ONNX Runtime {len(answered)} of {len(carried)}, the daemon {len(served)}")
    print("wrong in ONNX Runtime itself:")
    for outcome in carried:
        if outcome.runtime:
            print(f"  {outcome.case.name}: {outcome.runtime}{'' if outcome.served else '; right through the daemon'}")
    print(f"right in ONNX Runtime and wrong through the daemon: {len(faults)} of {len(answered)}")
    for outcome in faults:
        print(f"  {outcome.case.kind} {outcome.case.name}: {outcome.served}")


if __name__ == "__main__":
    sys.exit(main())
