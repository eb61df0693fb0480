"""The graph of an ensemble: steps that are connected by named tensors. Pure.

The rules are Triton's, with two more: no step may write to an input of the ensemble, and an input of the ensemble
cannot also be one of its outputs. Ensembles in ensembles, models with several responses, and models with sequences are
not supported.

In config.pbtxt, -1 is a dimension of any size. If `max_batch_size` is above 0, dims leave out the batch dimension. The
shapes of requests include the batch dimension.

Source, in triton-inference-server/core: ValidateEnsembleSchedulingConfig in src/model_config_utils.cc,
ValidateEnsembleConfig in src/ensemble_scheduler/ensemble_utils.cc, and ReshapeTensorDims in
src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from edged.errors import ConfigError
from edged.models.triton_config import Step, TensorConfig, TritonConfig
from edged.tensors import TensorSpec

_MOST_STEPS = 64
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

Dims: TypeAlias = "tuple[int, ...]"


class Port(msgspec.Struct, frozen=True):
    """An input or output of a step's model, or of the ensemble. `dims` are as in config.pbtxt; None means any shape. If
    `is_batched`, the tensor has a batch dimension before `dims`."""

    name: str
    datatype: str
    dims: Dims | None
    is_batched: bool = False
    is_optional: bool = False

    @property
    def whole(self) -> Dims | None:
        """The dims including the batch dimension, if there is one."""
        return (-1, *self.dims) if self.is_batched and self.dims is not None else self.dims


class Part(msgspec.Struct, frozen=True):
    """The model of a step. `max_batch_size` is 0 if the model has no batch dimension. `unfit` is the reason why the
    model cannot be in an ensemble, or empty."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_batch_size: int = 0
    unfit: str = ""


def ports(tensors: Iterable[TensorConfig], max_batch_size: int) -> tuple[Port, ...]:
    """Return the ensemble's inputs or outputs in config.pbtxt as ports."""
    return tuple(Port(each.name, each.datatype, each.dims, max_batch_size > 0, each.optional) for each in tensors)


def specs(of: Iterable[Port]) -> tuple[TensorSpec, ...]:
    """Return ports of an ensemble as tensor specs. Their shapes include the batch dimension; "?" is an open one."""
    return tuple(
        TensorSpec(port.name, port.datatype, tuple("?" if dim < 0 else dim for dim in port.whole or ())) for port in of
    )


# -- without the models -----------------------------------------------------------------------------------------------


def check(config: TritonConfig) -> None:
    """Raise ConfigError if the ensemble is invalid whatever its models are: for example, if the steps form a cycle, if
    two steps produce the same tensor, or if a tensor is not used. The error names the tensor or step."""
    steps = config.steps or ()
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise ConfigError(f"ensemble_scheduling has {len(steps)} steps; an ensemble needs from 1 to {_MOST_STEPS}")
    given = _declared("input", config.inputs)
    wanted = _declared("output", config.outputs)
    for index, step in enumerate(steps):
        _check_step(index, step)
    produced = Counter(tensor for step in steps for tensor in step.outputs.values())
    twice = next((tensor for tensor, count in produced.items() if count > 1 or tensor in given), None)
    if twice is not None:
        other = "an input of the ensemble" if twice in given else "an output of another step, too"
        raise ConfigError(f"tensor {twice[:80]!r} is an output of a step and {other}; rename one of the tensors")
    used = {tensor for step in steps for tensor in step.inputs.values()}
    for name in given:
        if name not in used:
            raise ConfigError(f"input {name[:80]!r} of the ensemble is not in any input_map; map it or remove it")
    for name in wanted:
        if name not in produced:
            raise ConfigError(
                f"output {name[:80]!r} of the ensemble is not in any output_map; map an output of a step to it"
            )
    for index, step in enumerate(steps):
        _check_use(_named(index, step), step, {*given, *produced}, used | wanted)
    _check_order(steps, given)


def _declared(kind: str, tensors: Sequence[TensorConfig]) -> set[str]:
    if not tensors:
        raise ConfigError(f"the ensemble has no {kind}, but needs at least one {kind}")
    ((most, times),) = Counter(tensor.name for tensor in tensors).most_common(1)
    if times > 1:
        raise ConfigError(f"{kind} {most[:80]!r} of the ensemble is declared twice; remove one of them")
    for tensor in tensors:
        if not tensor.datatype:
            raise ConfigError(f"{kind} {tensor.name[:80]!r} of the ensemble has no data_type; give data_type and dims")
    return {tensor.name for tensor in tensors}


def _check_step(index: int, step: Step) -> None:
    what = _named(index, step)
    if not step.model:
        raise ConfigError(f"step {index} has no model_name; name its model")
    if step.version and not _VERSION.fullmatch(step.version):
        raise ConfigError(f"{what} has the invalid model_version {step.version}; set one from 1 on, or -1")
    for kind, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
        if not tensors:
            raise ConfigError(f"{what} has no {kind}")
        if not all(tensors) or not all(tensors.values()):
            raise ConfigError(f"{what} has an empty name in its {kind}")


def _check_use(what: str, step: Step, known: Collection[str], used: Collection[str]) -> None:
    for name, tensor in step.inputs.items():
        if tensor not in known:
            raise ConfigError(
                f"{what}: input {name[:80]!r} gets tensor {tensor[:80]!r}, which is neither an input of the ensemble"
                " nor an output of a step; correct input_map"
            )
    for name, tensor in step.outputs.items():
        if tensor not in used:
            raise ConfigError(
                f"{what}: tensor {tensor[:80]!r} is not used; remove output {name[:80]!r} from output_map"
            )


def _check_order(steps: Sequence[Step], given: Collection[str]) -> None:
    known, left = set(given), list(steps)
    while ready := [step for step in left if known.issuperset(step.inputs.values())]:
        known.update(tensor for step in ready for tensor in step.outputs.values())
        left = [step for step in left if step not in ready]
    if left:
        names = ", ".join(sorted(repr(tensor[:40]) for step in left for tensor in step.outputs.values())[:8])
        raise ConfigError(f"the steps form a cycle: each of the tensors {names} needs another of them first")


def _named(index: int, step: Step) -> str:
    """Return a step's name in messages. Steps are counted from 0, as Triton does."""
    return f"step {index} (model {step.model[:80]!r})"


# -- with the models --------------------------------------------------------------------------------------------------


def check_parts(config: TritonConfig, parts: Sequence[Part]) -> None:
    """Raise ConfigError if the models do not fit together. The error names the step and the tensor. `parts` has the
    model of each step, in the order of the steps."""
    producers = {
        port.name: ("the ensemble", port)
        for port in (*ports(config.inputs, config.max_batch_size), *ports(config.outputs, config.max_batch_size))
    }
    for index, (step, part) in enumerate(zip(config.steps or (), parts, strict=True)):
        what = _named(index, step)
        if part.unfit:
            raise ConfigError(f"{what}: {part.unfit}")
        if 0 < part.max_batch_size < config.max_batch_size:
            raise ConfigError(
                f"the ensemble has max_batch_size {config.max_batch_size}, but {what} has only"
                f" {part.max_batch_size}; lower max_batch_size of the ensemble"
            )
        missing = (port.name for port in part.inputs if port.name not in step.inputs and not port.is_optional)
        if (name := next(missing, None)) is not None:
            raise ConfigError(f"{what}: input {name[:80]!r} of the model is missing in input_map; add it")
        _check_maps(what, step, part, producers)


def _check_maps(what: str, step: Step, part: Part, known: dict[str, tuple[str, Port]]) -> None:
    for kind, tensors, of_part in (("input", step.inputs, part.inputs), ("output", step.outputs, part.outputs)):
        by_name = {port.name: port for port in of_part}
        for name, tensor in tensors.items():
            port = by_name.get(name)
            if port is None:
                there = ", ".join(by_name) or "none"
                raise ConfigError(f"{what}: the model has no {kind} {name[:80]!r}; it has {there[:200]}")
            other, before = known.setdefault(tensor, (what, port))
            if port.datatype != before.datatype:
                raise ConfigError(
                    f"datatypes differ: tensor {tensor[:80]!r} is {before.datatype} for {other} and {port.datatype} for"
                    f" {what}; correct the maps, or use another model"
                )
            if not (_agree(port.dims, before.dims) or _agree(port.whole, before.whole)):
                raise ConfigError(
                    f"shapes differ: tensor {tensor[:80]!r} is {list(before.whole or ())} for {other} and"
                    f" {list(port.whole or ())} for {what}; correct the dims or the maps"
                )


def _agree(one: Dims | None, other: Dims | None) -> bool:
    """Whether a single tensor can have both dims. None agrees with all dims, and -1 agrees with every size. The actual
    sizes are checked in each request."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


# -- in a request -----------------------------------------------------------------------------------------------------


def needed(steps: Sequence[Step], outputs: Iterable[str]) -> frozenset[int]:
    """Return the indices of the steps that a request for these outputs needs. The steps must have passed `check`."""
    producer = {tensor: index for index, step in enumerate(steps) for tensor in step.outputs.values()}
    found, left = set[int](), list(outputs)
    while left:
        index = producer.get(left.pop())
        if index is not None and index not in found:
            found.add(index)
            left += steps[index].inputs.values()
    return frozenset(found)


def shape_for(port: Port, shape: Dims, rows: int) -> Dims:
    """Return the shape in which a tensor is passed to a port. `rows` is the number of rows in the request that produced
    the tensor; 0 if the model that produced it has no batch dimension.

    If only the port has a batch dimension, add a first dimension of 1 if the tensor's shape fits `dims`. If only the
    tensor has a batch dimension, remove a first dimension of 1 if the tensor's shape does not fit `dims`.
    """
    if port.is_batched == (rows > 0):
        return shape
    fits = _agree(port.dims, shape)
    if port.is_batched:
        return (1, *shape) if fits else shape
    return shape[1:] if rows == 1 and not fits else shape


def consumers(steps: Sequence[Step], chosen: Collection[int]) -> Mapping[str, int]:
    """Return for each tensor how many of the chosen steps use it."""
    return Counter(tensor for index in chosen for tensor in set(steps[index].inputs.values()))


def ready(steps: Sequence[Step], waiting: Iterable[int], known: Collection[str]) -> Iterator[int]:
    """Yield the indices of the waiting steps whose input tensors are all in `known`."""
    return (index for index in waiting if all(tensor in known for tensor in steps[index].inputs.values()))
