"""Checks whether a graph is well-formed: every name is produced once, and no node depends on itself. Pure.

These checks come before a runtime opens the model, because some runtimes crash on an invalid graph, and some never end.
The errors of runtimes do not say whether the exporter or the runtime is at fault. `edged.jobs.inspect` checks types and
shapes of inputs and outputs. Initializers among `graph.input` are no error.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TypeAlias

import onnx

from edged.jobs import onnx_walk, weights
from edged.jobs.onnx_walk import bodies, called, label, text
from edged.models.finding import Category, Finding, Stage

_MOST_UNFOLDED = 1_000_000  # nodes, if every call of a local function is replaced by the function's nodes

_Function: TypeAlias = tuple[str, str, str]  # domain, name, overload
_Names: TypeAlias = Set[str]
_Indices: TypeAlias = Set[int]


def check(walk: onnx_walk.Walk) -> Finding | None:
    """Return the first finding; None if the graph is well-formed."""
    return next(_model(walk), None)


def _model(walk: onnx_walk.Walk) -> Iterator[Finding]:
    proto = walk.proto
    if not proto.graph.node:
        yield _finding(Category.NO_GRAPH, "the model has no nodes: it computes nothing")
    if not proto.graph.output:
        yield _finding(Category.NO_GRAPH, "the model has no outputs")
    if not proto.opset_import:
        yield _finding(Category.NO_GRAPH, "the model declares no opset")
    yield from _opsets("the model", proto.opset_import)
    yield from _functions(proto)
    yield from _graph(proto.graph, (), ())
    for tensor in walk.tensors:
        if (finding := weights.check(tensor)) is not None:
            yield finding


def _opsets(what: str, imports: Iterable[onnx.OperatorSetIdProto]) -> Iterator[Finding]:
    """Yield a finding for each domain with several declared versions, because runtimes silently use one of these. Equal
    entries are allowed, because onnx.compose writes them."""
    named = {(onnx_walk.domain(entry.domain), entry.version) for entry in imports}
    for domain in _twice([domain for domain, _ in sorted(named)]):
        versions = " and ".join(str(version) for own, version in sorted(named) if own == domain)
        yield _finding(Category.DUPLICATE, f"{what} declares several opsets of domain {domain[:100]!r}: {versions}")


# -- one graph ------------------------------------------------------------------------------------------------------


def _graph(graph: onnx.GraphProto, outer: Sequence[_Names], taken: Sequence[_Names]) -> Iterator[Finding]:
    """Yield the findings of one graph. `outer`: the names of the enclosing graphs, which the nodes of this graph may
    read. `taken`: if this graph is the body of a node, the names that are defined before that node. The nodes of this
    graph must not produce these names."""
    inputs = [value.name for value in graph.input]
    constants = [tensor.name for tensor in graph.initializer]
    constants += [sparse.values.name for sparse in graph.sparse_initializer]
    yield from _own_names(graph, inputs, constants)
    yield from _nodes(graph.node, {*inputs, *constants}, outer, taken)
    known = {*inputs, *constants, *(name for node in graph.node for name in node.output)}
    for output in graph.output:
        if not _is_known(output.name, (known, *outer)):
            message = f"no node produces output {text(output.name)[:100]!r}"
            yield _finding(Category.DANGLING, message, text(output.name))


def _own_names(graph: onnx.GraphProto, inputs: Sequence[str], constants: Sequence[str]) -> Iterator[Finding]:
    outputs = [value.name for value in graph.output]
    for kind, names in (("an input", inputs), ("an output", outputs), ("an initializer", constants)):
        for name in names:
            yield from _bad_name(name, kind)
        for name in _twice(names):
            yield _finding(Category.DUPLICATE, f"duplicate {kind.partition(' ')[2]} name {text(name)[:100]!r}", name)


def _nodes(
    nodes: Sequence[onnx.NodeProto], given: _Names, outer: Sequence[_Names], taken: Sequence[_Names]
) -> Iterator[Finding]:
    """Yield the findings about the nodes of a graph or function. `given`: the names of the inputs and initializers
    of this graph or function. `outer` and `taken` are as in `_graph`."""
    makers: dict[str, int] = {}
    names: set[str] = set()
    made = [tuple(node.output) for node in nodes]  # read once, because reading fields of protobuf messages is slow
    for index, node in enumerate(nodes):
        own = node.name
        if own and own in names:
            yield _finding(Category.DUPLICATE, f"two nodes have the name {label(node)[:100]!r}", label(node))
        names.add(own)
        for name in made[index]:
            if not name:
                continue
            if not _is_text(name):
                yield from _bad_name(name, f"an output of {called(node)}")
            if name in makers or name in given:
                other = (
                    called(nodes[makers[name]]) + " also produces"
                    if name in makers
                    else "is also the name of an input or initializer"
                )
                message = f"{called(node)} produces {text(name)[:100]!r}, which {other}"
                yield _finding(Category.DUPLICATE, message, label(node))
            if taken and _is_known(name, taken):
                message = f"{called(node)} produces {text(name)[:100]!r}, a name that the enclosing graph also has"
                yield _finding(Category.DUPLICATE, message, label(node))
            makers[name] = index
    here, before = {*given, *makers}, set(given)
    for index, node in enumerate(nodes):
        for name in node.input:
            if name and name not in here and not _is_known(name, outer):
                message = f"{called(node)} reads {text(name)[:100]!r}, which no node produces"
                yield _finding(Category.DANGLING, message, label(node))
        if node.attribute:
            for body in bodies(node):
                yield from _graph(body, (here, *outer), (before, *taken))
        before.update(made[index])
    yield from _cycle(nodes, makers)


def _is_known(name: str, scopes: Iterable[_Names]) -> bool:
    return any(name in scope for scope in scopes)


def _is_text(name: str | bytes) -> bool:
    return isinstance(name, str)


def _bad_name(name: str | bytes, what: str) -> Iterator[Finding]:
    if not name:
        yield _finding(Category.BAD_NAME, f"{what} has no name")
    elif not isinstance(name, str):
        yield _finding(Category.BAD_NAME, f"{what} has a name that is not UTF-8: {name!r}", text(name))


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


# -- cycles ---------------------------------------------------------------------------------------------------------


def _cycle(nodes: Sequence[onnx.NodeProto], makers: dict[str, int]) -> Iterator[Finding]:
    """Yield a finding if a node depends on its own output, directly or through other nodes. `nodes` have any order."""
    needs = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    if all(max(needed, default=-1) < index for index, needed in enumerate(needs)):
        return  # every node follows the nodes that it depends on, as exporters write them
    users: dict[int, list[int]] = {}
    for index, needed in enumerate(needs):
        for need in needed:
            users.setdefault(need, []).append(index)
    missing = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    done = 0
    while ready:
        done += 1
        for user in users.get(ready.pop(), ()):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    if done < len(nodes):
        ring = [nodes[index] for index in _ring(needs, missing)]
        shown = " -> ".join(called(node) for node in ring[:3]) + (" -> ..." if len(ring) > 3 else "")
        what = f"the graph has a cycle of {len(ring)} nodes: {shown}"
        message = what if len(ring) > 1 else f"{shown} reads its own output, which is a cycle"
        yield _finding(Category.CYCLE, message, label(ring[0]))


def _ring(needs: Sequence[_Indices], missing: Sequence[int]) -> list[int]:
    """Return the indices of the nodes of one cycle, each after a node that it depends on. `missing`: for each node, the
    number of its dependencies that are not sorted. A path along such dependencies always leads into a cycle."""
    at = next(index for index, count in enumerate(missing) if count)
    place: dict[int, int] = {}
    way: list[int] = []
    while at not in place:
        place[at] = len(way)
        way.append(at)
        at = min(need for need in needs[at] if missing[need])
    return way[place[at] :][::-1]


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the names of the values that a node and its bodies read from the graph of the node."""
    found = set(node.input)
    if not node.attribute:
        return found
    for body in bodies(node):
        own = {*(value.name for value in body.input), *(tensor.name for tensor in body.initializer)}
        own |= {name for inner in body.node for name in inner.output}
        found |= {value.name for value in body.output}.union(*map(_read, body.node)) - own
    return found


# -- local functions ------------------------------------------------------------------------------------------------


def _functions(proto: onnx.ModelProto) -> Iterator[Finding]:
    known: dict[_Function, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = _key(function.domain, function.name, getattr(function, "overload", ""))
        if key in known:
            yield _finding(Category.DUPLICATE, f"two functions have the name {_written(key)!r}", _written(key))
        known[key] = function
    if not known:
        return
    yield from _recursion(proto, known)
    for key, function in known.items():
        for finding in _opsets("the function", function.opset_import):
            yield _in_function(finding, key)
        for finding in _nodes(function.node, set(function.input), (), ()):
            yield _in_function(finding, key)
        made = {*function.input, *(name for node in function.node for name in node.output)}
        for name in function.output:
            if name not in made:
                message = f"no node produces output {text(name)[:100]!r}"
                yield _in_function(_finding(Category.DANGLING, message, text(name)), key)


def _recursion(proto: onnx.ModelProto, known: dict[_Function, onnx.FunctionProto]) -> Iterator[Finding]:
    """Yield a finding if functions call themselves, or become too many nodes when they are inlined."""
    calls = {key: Counter(_calls(function.node, known)) for key, function in known.items()}
    sizes: dict[_Function, int] = {}
    waiting = list(known)
    open_: list[_Function] = []
    while waiting:
        key = waiting[-1]
        if key in sizes:
            waiting.pop()
            continue
        if open_ and open_[-1] == key:  # the sizes of all functions that this function calls are known
            open_.pop()
            waiting.pop()
            sizes[key] = len(known[key].node) + sum(sizes[each] * count for each, count in calls[key].items())
            continue
        open_.append(key)
        for each in calls[key]:
            if each in open_:
                message = f"function {_written(each)!r} calls itself, directly or through other functions"
                yield _finding(Category.CYCLE, message, _written(each))
                return
        waiting += [each for each in calls[key] if each not in sizes]
    total = sum(sizes[each] for each in _calls(proto.graph.node, known))
    if max(total, *sizes.values()) > _MOST_UNFOLDED:
        message = f"the model's functions expand to {total} nodes; the limit is {_MOST_UNFOLDED}"
        yield _finding(Category.TOO_LARGE, message)


def _calls(nodes: Iterable[onnx.NodeProto], known: dict[_Function, onnx.FunctionProto]) -> Iterator[_Function]:
    for node in nodes:
        inner = itertools.chain.from_iterable(graph.node for body in bodies(node) for graph in onnx_walk.graphs(body))
        for each in itertools.chain([node], inner):
            key = _key(each.domain, each.op_type, getattr(each, "overload", ""))
            if key in known:
                yield key


def _key(domain: str, name: str, overload: str) -> _Function:
    return text(domain), text(name), text(overload)


def _written(key: _Function) -> str:
    return ".".join(filter(None, key[:2])) + (f":{key[2]}" if key[2] else "")


def _in_function(finding: Finding, key: _Function) -> Finding:
    message = f"in function {_written(key)[:100]!r}: {finding.message}"
    return Finding(finding.stage, finding.category, message, finding.remedy, finding.node)


def _finding(category: Category, message: str, node: str = "") -> Finding:
    return Finding(Stage.GRAPH, category, message, node=text(node))
