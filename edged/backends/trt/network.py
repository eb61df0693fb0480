"""Parses an ONNX file into a network of the runtime, or reports the reasons why the parser refuses the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from edged.backends.contract import Signature
from edged.backends.trt.api import DATATYPES, Builder, Network, ParserError, Tensor, Trt, find
from edged.backends.trt.log import Log, listen
from edged.errors import EdgedError, EngineUnusable, Unsuitable

# Parts of messages about features that the runtime lacks. Older parsers have no error code for unknown operators.
_UNSUPPORTED = ("Plugin not found", "No importer registered", "convertDtype")
_MOST_OPERATORS = 8
_MOST_NODES = 3


class _Failure(msgspec.Struct, frozen=True):
    """One error of the parser. `node` is the name or number of its node; empty if the error is not about a node."""

    operator: str
    node: str
    reason: str
    is_unsupported: bool


class Parsed(msgspec.Struct, frozen=True):
    """A network, and the objects that must live as long as the network."""

    network: Network
    is_strongly_typed: bool
    owners: tuple[object, ...]


def create_builder(trt: Trt, log: Log, kind: str) -> Builder:
    """Create a builder that logs to `log`. Raises EngineUnusable if that fails, usually because there is no GPU."""
    logger = listen(trt, log)
    plugins = find(trt, "init_libnvinfer_plugins")
    if callable(plugins):
        plugins(logger, "")  # plugins of the runtime implement some operators
    try:
        return trt.Builder(logger)
    except MemoryError:  # the child has reached its memory limit, and reports that itself
        raise
    except Exception as error:  # the bindings have a special error for a null pointer
        raise EngineUnusable(f"{kind} cannot start here: {log.reason() or error}") from error


def parse(trt: Trt, builder: Builder, log: Log, model: Path, kind: str) -> Parsed:
    """Parse a model into a network. Raises Unsuitable if the runtime lacks something that the model needs,
    EngineUnusable if the file cannot be read."""
    strongly = find(trt, "NetworkDefinitionCreationFlag.STRONGLY_TYPED")
    explicit = find(trt, "NetworkDefinitionCreationFlag.EXPLICIT_BATCH")
    flags = sum(1 << _number(flag) for flag in (strongly, explicit) if flag is not None)
    network = builder.create_network(flags)
    logger = listen(trt, log)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise _refusal(kind, model.name, [parser.get_error(i) for i in range(parser.num_errors)], log)
    if not network.num_outputs:
        raise EngineUnusable(f"{kind} finds no output in {model.name}; is it an ONNX model?")
    # The parser owns the weights that the network points to.
    return Parsed(network, strongly is not None, (parser, logger))


def require_datatypes(signature: Signature, kind: str) -> None:
    """Raise Unsuitable if an input or output has a datatype that the runtime lacks."""
    for spec in (*signature.inputs, *signature.outputs):
        if spec.datatype not in DATATYPES.values():
            raise Unsuitable(f"{kind} does not support {spec.datatype}, the datatype of tensor {spec.name}")


def require_interface(network: Network, signature: Signature, kind: str) -> None:
    """Raise Unsuitable if the network lacks an input or output of the model, or has it in another datatype, or if the
    values of an input with open dimensions determine shapes."""
    tensors = {tensor.name: tensor for tensor in (*inputs(network), *outputs(network))}
    for spec in (*signature.inputs, *signature.outputs):
        tensor = tensors.get(spec.name)
        if tensor is None:
            raise Unsuitable(f"{kind}'s network lacks the tensor {spec.name}, which the model declares")
        found = DATATYPES.get(tensor.dtype.name, tensor.dtype.name)
        if found != spec.datatype:
            raise Unsuitable(
                f"{kind} would convert the {spec.datatype} tensor {spec.name} to {found}; use another backend"
            )
    for tensor in inputs(network):
        if tensor.is_shape_tensor and any(size < 0 for size in tensor.shape):
            raise Unsuitable(
                f"the values of input {tensor.name} determine shapes; {kind} needs a range for these values, and edged"
                " cannot set such a range; use another backend"
            )


def inputs(network: Network) -> Iterator[Tensor]:
    return (network.get_input(index) for index in range(network.num_inputs))


def outputs(network: Network) -> Iterator[Tensor]:
    return (network.get_output(index) for index in range(network.num_outputs))


# -- refusals -------------------------------------------------------------------------------------------------------


def _refusal(kind: str, model: str, errors: Iterable[ParserError], log: Log) -> EdgedError:
    failures = [_failure(error, log) for error in errors]
    if not failures:
        return EngineUnusable(f"{kind} cannot read {model}: {log.reason() or 'the runtime gives no reason'}")
    refused = [failure for failure in failures if failure.is_unsupported]
    others = [failure for failure in failures if not failure.is_unsupported]
    reasons = _unsupported(refused) + [_describe(failure) for failure in others[:_MOST_NODES]]
    reasons += [f"{len(others) - _MOST_NODES} more errors"] if len(others) > _MOST_NODES else []
    count = f"{len(refused)} node{'s' * (len(refused) > 1)} of " if any(f.operator for f in refused) else ""
    verb = "does not support" if refused else "refuses"
    line = f"{kind} {verb} {count}{model}: {'; '.join(reasons)}"
    return Unsuitable(line) if refused else EngineUnusable(line)


def _unsupported(failures: Iterable[_Failure]) -> list[str]:
    """Return a text for each unsupported operator: its count, some of its nodes, and the first reason."""
    by_operator: dict[str, list[_Failure]] = {}
    for failure in failures:
        by_operator.setdefault(failure.operator, []).append(failure)
    words = []
    for operator, found in list(by_operator.items())[:_MOST_OPERATORS]:
        if not operator:
            words.append(found[0].reason)
            continue
        nodes = [failure.node for failure in found if failure.node][:_MOST_NODES]
        more = ", …" if len(found) > len(nodes) and nodes else ""
        times = f" {len(found)}x" if len(found) > 1 else ""
        where = f" ({', '.join(nodes)}{more})" if nodes else ""
        words.append(f"{operator}{times}{where}: {found[0].reason}")
    left = len(by_operator) - _MOST_OPERATORS
    return [*words, f"{left} more operators"] if left > 0 else words


def _describe(failure: _Failure) -> str:
    where = " ".join(word for word in (failure.operator, failure.node and f"({failure.node})") if word)
    return f"{where}: {failure.reason}" if where else failure.reason


def _failure(error: ParserError, log: Log) -> _Failure:
    number, reason = error.node(), error.desc()
    operator = _field(error, "node_operator") or log.operators.get(number, "")
    node = _field(error, "node_name") or (f"node {number}" if number >= 0 else "")
    code = error.code().name
    is_unsupported = code.startswith("UNSUPPORTED") or any(words in reason for words in _UNSUPPORTED)
    return _Failure(operator, node[:60], _in_words(reason), is_unsupported)


def _field(error: ParserError, what: str) -> str:
    """Call the method `what` of an error, such as `node_name`; return "" if the parser is too old to have it."""
    ask = find(error, what)
    return str(ask()) if callable(ask) else ""


def _in_words(reason: str) -> str:
    """Return a parser's reason as a text for messages. A reason is a condition from the parser's source code, often
    with a sentence after the condition. If there is a sentence, return only the sentence."""
    if "Plugin not found" in reason or "No importer registered" in reason:
        return "no such operator"
    if "convertDtype" in reason:
        return "unsupported datatype"
    quoted = reason.rpartition(' && "')[2].removesuffix('"') if ' && "' in reason else reason
    return " ".join(quoted.split())[:160]


def _number(flag: object) -> int:
    return int(flag)  # type: ignore[call-overload,no-any-return]  # the runtime's enumerations convert
