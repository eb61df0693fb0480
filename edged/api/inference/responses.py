"""Makes the responses of a request from an engine's outputs, which lie in memory that the daemon shares with the
engine's host."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np

from edged.api.grpc.wire import Contents
from edged.api.inference.requests import BYTE_SIZE, FINAL, OFFSET, REGION, Place, RequestedOutput
from edged.api.inference.sequences import StateTensor
from edged.api.inference.shared_memory import Region
from edged.errors import EdgedError, EngineUnusable, InvalidInput, TooLarge
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import OutputTensor, OutputView
from edged.tensors import Array, to_array

Written = TypeVar("Written")
# Writes a response with its raw contents, one for each output. The contents are valid only during the call.
Write: TypeAlias = Callable[[pb.ModelInferResponse, Sequence[Contents]], Written]

_MOST_ROWS = 1 << 16  # limit of rows that become separate responses


class Form(msgspec.Struct, frozen=True):
    """The form of a request's responses.

    `wanted` are the outputs in their order; empty means all except `hidden`. `states` maps an output to the input that
    gets the output's values in the next request. `regions` maps an output to its shared memory. `labels` maps an output
    to the names of its classes; `default_labels` apply to other outputs. `by_row`: every output has a batch dimension.
    `rows`: each row of the outputs becomes a response; with `empty_final` an empty response follows. `streamed`: each
    response has the parameter `FINAL`, which is true only in the last response.
    """

    name: str
    version: str
    wanted: tuple[RequestedOutput, ...] = ()
    hidden: frozenset[str] = frozenset()
    states: Mapping[str, str] = {}
    regions: Mapping[str, Region] = {}
    labels: Mapping[str, Sequence[str]] = {}
    default_labels: Sequence[str] = ()
    by_row: bool = False
    rows: bool = False
    empty_final: bool = False
    streamed: bool = False


class Collector(Generic[Written]):
    """Collects the responses of one request and the state of its sequence. An instance is a `work.Sink`: a callable
    that receives the outputs. `identifier` is the id of the request. With `copies`, `outputs` has copies of them."""

    def __init__(self, form: Form, identifier: str, write: Write[Written], copies: bool = False) -> None:
        self._form, self._id, self._write, self._copies = form, identifier, write, copies
        self._written: list[Written] = []
        self._failure: Exception | None = None
        self.state: dict[str, StateTensor] = {}
        self.outputs: tuple[OutputTensor, ...] = ()

    def __call__(self, outputs: tuple[OutputView, ...]) -> None:
        """Make the responses. Raises EdgedError, which becomes the answer of the request."""
        try:
            if self._copies:
                self.outputs = tuple(output.kept() for output in outputs)
            form = self._form
            for output in outputs:
                if output.name in form.states:
                    self.state[form.states[output.name]] = StateTensor(output.shape, bytes(output.data))
            self._written = list(self._responses(_chosen(form, outputs)))
        except EdgedError:
            raise
        except Exception as error:  # only the request must fail, not the slot that delivers the outputs
            self._failure = error

    def responses(self) -> list[Written]:
        """Return the responses in their order, or raise the error that prevented them."""
        if self._failure is not None:
            raise self._failure
        return self._written

    def _responses(self, outputs: list[tuple[RequestedOutput, OutputView]]) -> Iterator[Written]:
        form = self._form
        parts = list(_by_rows(outputs)) if form.rows else [outputs]
        for number, part in enumerate(parts, 1):
            message, raw = self._response(part)
            if form.streamed:
                is_last = number == len(parts) and not (form.rows and form.empty_final)
                message.parameters[FINAL].bool_param = is_last
            yield self._write(message, raw)
        if form.rows and form.empty_final:
            message, raw = self._response([])
            message.parameters[FINAL].bool_param = True
            yield self._write(message, raw)

    def _response(
        self, outputs: list[tuple[RequestedOutput, OutputView]]
    ) -> tuple[pb.ModelInferResponse, list[Contents]]:
        form = self._form
        message = pb.ModelInferResponse(model_name=form.name, model_version=form.version, id=self._id)
        raw: list[Contents] = []
        for wanted, output in outputs:
            if wanted.classes:
                labels = form.labels.get(wanted.name, form.default_labels)
                output = classify(output, wanted.classes, labels, form.by_row or len(output.shape) > 1)
            tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
            if wanted.place is None:
                raw.append(output.data)
            else:
                form.regions[wanted.name].write(output.data, wanted.place, f"output {wanted.name!r}")
                _set_place(tensor, wanted.place, len(output.data))
                raw.append(b"")
        return message, raw


def _chosen(form: Form, outputs: tuple[OutputView, ...]) -> list[tuple[RequestedOutput, OutputView]]:
    by_name = {output.name: output for output in outputs}
    wanted = form.wanted or tuple(RequestedOutput(output.name) for output in outputs if output.name not in form.hidden)
    return [(each, by_name[each.name]) for each in wanted]


def _set_place(tensor: pb.ModelInferResponse.InferOutputTensor, place: Place, size: int) -> None:
    tensor.parameters[REGION].string_param = place.region
    tensor.parameters[BYTE_SIZE].int64_param = size
    if place.offset:
        tensor.parameters[OFFSET].int64_param = place.offset


def _by_rows(outputs: list[tuple[RequestedOutput, OutputView]]) -> Iterator[list[tuple[RequestedOutput, OutputView]]]:
    """Yield the outputs row by row, with a first dimension of 1. Raises EngineUnusable if the outputs have unequal
    numbers of rows, TooLarge for too many rows."""
    counts = {output.shape[0] if output.shape else -1 for _, output in outputs}
    if len(counts) > 1 or -1 in counts:
        shapes = ", ".join(f"{output.name} {list(output.shape)}" for _, output in outputs)
        raise EngineUnusable(
            f"the outputs of a decoupled model need equal first dimensions, since each row is a response: {shapes};"
            " correct the model"
        )
    if max(counts, default=0) > _MOST_ROWS:
        raise TooLarge(f"the outputs have {max(counts)} rows, each a response; the maximum is {_MOST_ROWS}")
    cuts = [_cuts(output) for _, output in outputs]
    for row in range(max(counts, default=0)):
        yield [
            (wanted, OutputView(o.name, o.datatype, (1, *o.shape[1:]), o.data[cut[row] : cut[row + 1]]))
            for (wanted, o), cut in zip(outputs, cuts, strict=True)
        ]


def _cuts(output: OutputView) -> list[int]:
    """Return the byte positions at which the rows of an output begin, and the position at which the last row ends."""
    count = output.shape[0]
    if output.datatype != "BYTES":
        size = len(output.data) // count if count else 0
        return [row * size for row in range(count + 1)]
    position, cuts = 0, [0]
    for _ in range(count):
        for _ in range(math.prod(output.shape[1:])):
            position += 4 + int(struct.unpack_from("<I", output.data, position)[0])
        cuts.append(position)
    return cuts


_UNFIT = ("BYTES", "BOOL")
_MOST_ENTRIES = 1 << 16  # limit of strings of one output, since the event loop makes them


def classify(tensor: OutputView, classes: int, labels: Sequence[str], by_row: bool) -> OutputView:
    """Return a BYTES tensor of at most `classes` strings `SCORE:INDEX` or `SCORE:INDEX:LABEL`, the highest score first.

    With `by_row` the strings are the best of each row of the first dimension, shape [rows, n]; otherwise the best of
    all values, shape [n]. Equal scores are in the order of their indexes, NaN last. Raises InvalidInput for an output
    without numbers, TooLarge for too many strings.
    """
    if tensor.datatype in _UNFIT:
        raise InvalidInput(f"output {tensor.name!r} is {tensor.datatype}, not scores; remove 'classification'")
    shape = tensor.shape
    values = to_array(tensor.name, tensor.datatype, shape, tensor.data)
    scores = _widened(values, tensor.datatype)
    by_row = by_row and bool(shape)
    rows = scores.reshape(shape[0] if by_row else 1, -1) if scores.size else np.empty((shape[0] if by_row else 1, 0))
    count = min(classes, rows.shape[1])
    if len(rows) * count > _MOST_ENTRIES:
        raise TooLarge(
            f"output {tensor.name!r} would have {len(rows) * count} classes; request at most {_MOST_ENTRIES} in all"
        )
    strings = [_entry(row, index, labels) for row in rows for index in _best(row, count)]
    data = b"".join(struct.pack("<I", len(text)) + text for text in strings)
    return OutputView(tensor.name, "BYTES", (len(rows), count) if by_row else (count,), memoryview(data))


def _widened(values: Array, datatype: str) -> Array:
    if datatype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if datatype == "FP16" else values


def _best(row: Array, count: int) -> list[int]:
    """Return the indexes of the `count` highest scores, without sorting all scores, of which there may be very many."""
    if not count:
        return []
    known = np.arange(len(row)) if row.dtype.kind in "iu" else np.flatnonzero(~np.isnan(row))
    scores = row[known]
    if count < len(known):
        lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > lowest)
        equal = np.flatnonzero(scores == lowest)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
        known, scores = known[chosen], scores[chosen]
    # A stable ascending sort of the reversed scores, reversed again, keeps equal scores in the order of their indexes.
    order = len(scores) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]
    best = known[order]
    if len(best) < count:
        best = np.concatenate([best, np.flatnonzero(np.isnan(row))[: count - len(best)]])
    return [int(index) for index in best]


def _entry(row: Array, index: int, labels: Sequence[str]) -> bytes:
    score = f"{float(row[index]):f}" if row.dtype.kind == "f" else f"{int(row[index])}"
    label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
    return f"{score}:{index}{label}".encode()
