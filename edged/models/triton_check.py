"""Checks a Triton configuration against its ONNX file, and combines the two. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edged.backends import profile
from edged.backends.contract import Signature
from edged.errors import ConfigError
from edged.models.settings import BATCH_MAX, max_batch
from edged.models.triton_config import SequenceBatching, TensorConfig, TritonConfig, Warmup
from edged.tensors import ANY_SHAPE, TensorSpec, byte_size

_MOST_WARMUP_BYTES = 256 << 20
COMPLETED_ROWS = 4  # the max_batch_size that Triton writes into a configuration without one


def check(config: TritonConfig, signature: Signature, optional: Sequence[TensorSpec] = ()) -> None:
    """Raise ConfigError if the configuration contradicts the ONNX file. The error names the tensor. `optional` are the
    inputs with a default."""
    defaults = {spec.name for spec in optional}
    rows = config.max_batch_size
    for kind, tensors, specs in (
        ("input", config.inputs, signature.inputs),
        ("output", config.outputs, signature.outputs),
    ):
        for spec in specs if rows else ():
            if spec.shape != ANY_SHAPE and (not spec.shape or isinstance(spec.shape[0], int)):
                raise ConfigError(
                    f"config.pbtxt has max_batch_size {rows}, but the first dimension of {kind} {spec.name!r} "
                    f"{list(spec.dims)} is not open; set max_batch_size: 0, or export the model with an open dimension"
                )
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise ConfigError(f"config.pbtxt names {kind} {max(names, key=names.count)!r} twice; remove one")
        for tensor in tensors:
            spec = _spec(kind, tensor.name, (*specs, *optional) if kind == "input" else specs)
            _require_datatype(f"{kind} {tensor.name!r}", tensor.datatype, spec)
            if tensor.dims or tensor.reshape is not None:
                least = 0 if tensor.name in defaults else rows
                _require_dims(f"{kind} {tensor.name!r}", tensor.model_dims, spec, least)
    if config.sequence is not None:
        _check_sequence(config.sequence, config.max_batch_size, signature)
    for warmup in config.warmups:
        _check_warmup(warmup, config, signature)


def declared(config: TritonConfig, signature: Signature) -> Signature:
    """Return the signature with the sizes that the configuration gives for open dimensions."""
    return Signature(
        tuple(_declared(spec, config.inputs, config.max_batch_size) for spec in signature.inputs),
        tuple(_declared(spec, config.outputs, config.max_batch_size) for spec in signature.outputs),
    )


def is_batchable(signature: Signature) -> bool:
    """Whether the first dimension of every input and output is open, so that it may be a batch dimension."""
    specs = (*signature.inputs, *signature.outputs)
    return bool(signature.inputs) and all(
        spec.shape and spec.shape != ANY_SHAPE and isinstance(spec.shape[0], str) for spec in specs
    )


def max_batch_size(
    signature: Signature, settings: Mapping[str, str], triton: TritonConfig, *, is_independent: bool = False
) -> int:
    """Return the largest number of rows in a tensor request; 0 if the model has no batch dimension.

    If config.pbtxt describes tensors or sets max_batch_size, the result is its max_batch_size, or `batch.max` if that
    is lower. Otherwise a model has a batch dimension if the first dimension of every tensor is open and the largest
    number of rows is known. This number is `batch.max`, or else the largest batch that all ranges of `profile.*`
    accept, or else, with `is_independent`, Triton's default (4). `is_independent` says that a check found the rows to
    be independent. No fact about the box is used, so that clients see the same value on every box.
    """
    wanted = max_batch(settings)
    if _sets_rows(triton):
        return min(triton.max_batch_size, wanted or triton.max_batch_size)
    if not is_batchable(signature):
        return 0
    ranges = (profile.given(settings, spec.name) for spec in signature.inputs)
    most = min((each.maximum[0] for each in ranges if each is not None and each.maximum), default=0)
    return wanted or most or (COMPLETED_ROWS if is_independent else 0)


def unused_batch(signature: Signature, settings: Mapping[str, str], triton: TritonConfig) -> str:
    """Return a line if `batch.max` has no effect on tensor requests, because config.pbtxt describes tensors without
    max_batch_size; otherwise an empty string."""
    wanted = max_batch(settings) or 1
    if wanted == 1 or triton.max_batch_size or not _sets_rows(triton) or not is_batchable(signature):
        return ""
    return (
        f"setting {BATCH_MAX}={wanted} has no effect on tensor requests, because config.pbtxt describes tensors without"
        f" max_batch_size; set max_batch_size: {wanted} there, and leave the batch dimension out of dims"
    )


def may_be_completed(signature: Signature, settings: Mapping[str, str], triton: TritonConfig) -> bool:
    """Whether the model has a batch dimension if its rows are independent, although neither settings nor config.pbtxt
    mention one. Models with text tensors are excluded."""
    has_text = any(spec.datatype == "BYTES" for spec in (*signature.inputs, *signature.outputs))
    return (
        not has_text
        and max_batch_size(signature, settings, triton, is_independent=True) > 0
        and (max_batch_size(signature, settings, triton) == 0)
    )


def made_up_inputs(config: TritonConfig) -> frozenset[str]:
    """Return the inputs that edged fills in: controls and states of a sequence."""
    if config.sequence is None:
        return frozenset()
    controls = (control.input for control in config.sequence.controls)
    return frozenset((*controls, *(state.input for state in config.sequence.states)))


def _sets_rows(triton: TritonConfig) -> bool:
    """Whether config.pbtxt decides the number of rows. If it describes tensors, no max_batch_size means 0."""
    return bool(triton.max_batch_size or triton.inputs or triton.outputs)


def _declared(spec: TensorSpec, tensors: Sequence[TensorConfig], rows: int) -> TensorSpec:
    tensor = next((tensor for tensor in tensors if tensor.name == spec.name), None)
    if tensor is None or not tensor.model_dims:
        return spec
    dims = [-1, *tensor.model_dims] if rows else list(tensor.model_dims)
    if spec.shape == ANY_SHAPE:
        return TensorSpec(spec.name, spec.datatype, tuple("?" if dim < 0 else dim for dim in dims))
    return TensorSpec(
        spec.name, spec.datatype, tuple(have if dim < 0 else dim for have, dim in zip(spec.shape, dims, strict=True))
    )


def _spec(kind: str, name: str, specs: Sequence[TensorSpec]) -> TensorSpec:
    found = next((spec for spec in specs if spec.name == name), None)
    if found is None:
        there = ", ".join(spec.name for spec in specs[:8])
        raise ConfigError(f"config.pbtxt names {kind} {name[:80]!r}, which the model does not have; it has {there}")
    return found


def _require_datatype(what: str, datatype: str, spec: TensorSpec) -> None:
    if datatype and datatype != spec.datatype:
        raise ConfigError(f"config.pbtxt says that {what} is {datatype}; in the model it is {spec.datatype}")


def _require_dims(what: str, dims: Sequence[int], spec: TensorSpec, rows: int) -> None:
    if spec.shape == ANY_SHAPE:
        return
    have = spec.dims[1:] if rows else spec.dims
    if len(dims) != len(have) or any(size not in (-1, dim) for size, dim in zip(have, dims, strict=True)):
        without = " without its batch dimension" if rows else ""
        raise ConfigError(f"config.pbtxt says that {what} has dims {list(dims)}; in the model{without}: {list(have)}")


def _check_sequence(sequence: SequenceBatching, rows: int, signature: Signature) -> None:
    for control in sequence.controls:
        spec = _spec("input", control.input, signature.inputs)
        _require_datatype(f"control input {control.input!r}", control.datatype, spec)
    for state in sequence.states:
        for spec in (
            _spec("input", state.input, signature.inputs),
            _spec("output", state.output, signature.outputs),
        ):
            _require_datatype(f"state {spec.name!r}", state.datatype, spec)
            if state.dims:
                _require_dims(f"state {spec.name!r}", state.dims, spec, rows)


def _check_warmup(warmup: Warmup, config: TritonConfig, signature: Signature) -> None:
    what = f"model_warmup {warmup.name!r}"
    given = made_up_inputs(config).union(each.name for each in warmup.inputs)
    missing = next((spec.name for spec in signature.inputs if spec.name not in given), None)
    if missing is not None:
        raise ConfigError(f"{what} has no input {missing!r}, which the model needs")
    total = 0
    for each in warmup.inputs:
        spec = _spec("input", each.name, signature.inputs)
        _require_datatype(f"{what}: input {each.name!r}", each.datatype, spec)
        shape = (warmup.batch_size, *each.dims) if warmup.batch_size else each.dims
        if not spec.admits(shape):
            raise ConfigError(f"{what}: input {each.name!r} is {list(spec.dims)} in the model, not {list(shape)}")
        total += math.prod(shape) * 4 if spec.datatype == "BYTES" else byte_size(spec.datatype, shape)
    if total > _MOST_WARMUP_BYTES:
        raise ConfigError(
            f"{what} takes {total >> 20} MiB, more than the limit of {_MOST_WARMUP_BYTES >> 20} MiB; give smaller dims"
        )
