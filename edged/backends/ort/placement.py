"""Which execution provider runs which node, as ONNX Runtime itself tells when a session is made.

From 1.24 on a session keeps it (`session.record_ep_graph_assignment_info`). Before, only the verbose log tells, which
goes to the process's standard error; 1.23, the last for Python 3.10, is the only such version that edged takes. What
it tells is how the graph was parted: nodes that a provider fuses afterwards are counted as they were before.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TypeAlias

import msgspec
import onnxruntime as ort

from edged.backends.contract import Graph, Nodes
from edged.backends.ort.runtime import CPU_PROVIDER

# Whether sessions keep it.
_KEPT = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
_ALL = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] +All nodes placed on \[(\w+)\]\. Number of nodes: (\d+)")
_SOME = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] +Node\(s\) placed on \[(\w+)\]")
_ONE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] {3,}(\S+) \((.*)\)")
# How a line of ONNX Runtime's log begins, after a colour on a terminal: time, severity, logger.
_LOGGED = re.compile(rb"(\x1b\[[\d;]*m)*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[[VIWEF]:onnxruntime:|\x1b\[m\r?\n?$")


class PlacedNode(msgspec.Struct, frozen=True):
    """A node and the provider that runs it. Without `operator` if only the number of nodes is known."""

    provider: str
    name: str = ""
    operator: str = ""


Placement: TypeAlias = tuple[PlacedNode, ...]


def made(
    options: ort.SessionOptions, make: Callable[[ort.SessionOptions], ort.InferenceSession], *, matters: bool = True
) -> tuple[ort.InferenceSession, Placement]:
    """Makes a session with these options, which are changed, and tells where its nodes run, also those in bodies.

    Before 1.24 the standard error of the whole process is read meanwhile; what others wrote there follows afterwards.
    Without `matters` nothing is read in those versions, and the placement is empty.
    """
    if _KEPT:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = make(options)
        assignments = session.get_provider_graph_assignment_info()
        return session, tuple(PlacedNode(p.ep_name, n.name, n.op_type) for p in assignments for n in p.get_nodes())
    if not matters:
        return make(options), ()
    options.log_severity_level = 0
    with _standard_error() as file:
        session = make(options)
        file.seek(0)
        return session, from_log(line.decode(errors="replace") for line in file)


def from_log(lines: Iterable[str]) -> Placement:
    """What ONNX Runtime 1.23's verbose log tells."""
    found, provider = list[PlacedNode](), ""
    for line in lines:
        if match := _ALL.search(line):
            found += [PlacedNode(match[1])] * int(match[2])
        elif match := _SOME.search(line):
            provider = match[1]
        elif provider and (match := _ONE.search(line)):
            found.append(PlacedNode(provider, match[2], match[1]))
    return tuple(found)


def opened(
    options: ort.SessionOptions, make: Callable[[ort.SessionOptions], ort.InferenceSession]
) -> tuple[ort.InferenceSession, Nodes]:
    """As `made`, for a session whose providers leave no choice: they are returned if nothing else is known."""
    session, placed = made(options, make, matters=False)
    return session, counts(placed) or {name: {} for name in session.get_providers()}


def everywhere(graph: Graph, provider: str) -> Placement:
    """The placement of a graph that one provider runs wholly."""
    return tuple(PlacedNode(provider, name, operator) for name, operator in graph.nodes())


def counts(placement: Placement) -> Nodes:
    """Of nodes by operator, for each provider, as a Composition has them."""
    providers = sorted({node.provider for node in placement})
    return {provider: dict(sorted(on(placement, provider).items())) for provider in providers}


def on(placement: Placement, provider: str = CPU_PROVIDER) -> Counter[str]:
    """Numbers of the nodes that a provider runs, by operator."""
    return Counter(node.operator for node in placement if node.provider == provider)


def words(operators: Counter[str]) -> str:
    """`2 NonMaxSuppression, 1 Loop`: the most frequent first."""
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {operator or 'nodes'}" for operator, count in ordered)


@contextlib.contextmanager
def _standard_error() -> Iterator[BinaryIO]:
    """A file that the process's standard error goes into meanwhile; what is not ONNX Runtime's is passed on."""
    sys.stderr.flush()
    before = os.dup(2)
    with os.fdopen(os.memfd_create("edged-log", os.MFD_CLOEXEC), "w+b") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            for line in file:
                if not _LOGGED.match(line):
                    os.write(2, line)
