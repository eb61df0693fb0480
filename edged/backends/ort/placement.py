"""Which execution provider runs which node, as ONNX Runtime reports it when a session is created.

Since 1.24 a session can record the placement (`session.record_ep_graph_assignment_info`). Version 1.23, the last one
for Python 3.10, writes the placement only to the verbose log on standard error. The placement has the nodes before
providers fuse them.
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

# Whether sessions of this version record the placement.
_KEPT = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
_ALL = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] +All nodes placed on \[(\w+)\]\. Number of nodes: (\d+)")
_SOME = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] +Node\(s\) placed on \[(\w+)\]")
_ONE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\] {3,}(\S+) \((.*)\)")
# The start of a line in ONNX Runtime's log: an optional colour, then time, severity, logger.
_LOGGED = re.compile(rb"(\x1b\[[\d;]*m)*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[[VIWEF]:onnxruntime:|\x1b\[m\r?\n?$")


class PlacedNode(msgspec.Struct, frozen=True):
    """A node and the provider that runs it. `name` and `operator` are empty if only the number of nodes is known."""

    provider: str
    name: str = ""
    operator: str = ""


Placement: TypeAlias = tuple[PlacedNode, ...]


def made(
    options: ort.SessionOptions, make: Callable[[ort.SessionOptions], ort.InferenceSession], *, matters: bool = True
) -> tuple[ort.InferenceSession, Placement]:
    """Create a session with `make`. Return it with the placement of its nodes; nodes of subgraphs are included. Changes
    `options`.

    With versions before 1.24, this function captures standard error of the whole process meanwhile, and afterwards
    writes the lines of other writers to standard error. If `matters` is false, it captures nothing with these versions,
    and returns an empty placement.
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
    """Return the placement from the verbose log of ONNX Runtime 1.23."""
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
    """Create a session with `make`. Return the session and the nodes that each provider runs (`Nodes`). If the
    placement is not known, return the session's providers without counts."""
    session, placed = made(options, make, matters=False)
    return session, counts(placed) or {name: {} for name in session.get_providers()}


def everywhere(graph: Graph, provider: str) -> Placement:
    """Return the placement of a graph in which `provider` runs all nodes."""
    return tuple(PlacedNode(provider, name, operator) for name, operator in graph.nodes())


def counts(placement: Placement) -> Nodes:
    """Return how many nodes of each operator each provider runs, as in `Composition.nodes`."""
    providers = sorted({node.provider for node in placement})
    return {provider: dict(sorted(on(placement, provider).items())) for provider in providers}


def on(placement: Placement, provider: str = CPU_PROVIDER) -> Counter[str]:
    """Return how many nodes of each operator a provider runs."""
    return Counter(node.operator for node in placement if node.provider == provider)


@contextlib.contextmanager
def _standard_error() -> Iterator[BinaryIO]:
    """Redirect standard error of the process to a file. At the end, pass on the lines of other writers."""
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
