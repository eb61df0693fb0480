"""A model's state between the requests of a sequence, and the inputs that edged fills in. Pure.

Both come from config.pbtxt, or from settings:

    sequence.state.h = "hn"          the input `h` is the output `hn` of the previous request
    sequence.control.BEGIN = "start" the input BEGIN is 1 in the first request of a sequence, else 0
    sequence.idle_ms = "5000"        how long a sequence may be idle

If no state is declared, edged recognises states by the usual names of inputs and outputs in recurrent models: `state`
and `stateN`, `h` and `hn`. Their datatypes must be equal and their shapes compatible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged.backends.contract import Signature
from edged.errors import ConfigError
from edged.models.triton_config import Control, ControlKind, SequenceBatching, State
from edged.tensors import ANY_SHAPE, TensorSpec

PREFIX = "sequence."
DECOUPLED = "decoupled"
_STATE, _CONTROL, _IDLE = "sequence.state.", "sequence.control.", "sequence.idle_ms"
_KINDS: Mapping[str, ControlKind] = {kind: kind for kind in ("start", "ready", "end", "corrid")}
_LONGEST_IDLE_MS = 86_400_000
# Names of the outputs that become the input `{}` of the next request.
_NEXT = ("{}N", "{}n", "{}_n", "{}_out", "{}_next", "next_{}", "new_{}")


class Sequencing(msgspec.Struct, frozen=True):
    """A model's states and controls in sequences of requests. A sequence ends after `idle` seconds without a request.
    `declared` is false if the states were recognised by their names."""

    states: tuple[State, ...] = ()
    controls: tuple[Control, ...] = ()
    idle: float = 1.0
    declared: bool = True

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that edged fills in."""
        return frozenset((*(state.input for state in self.states), *(control.input for control in self.controls)))

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs that become inputs of the next request in the sequence."""
        return frozenset(state.output for state in self.states)


def check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for invalid settings of sequences."""
    for key, value in settings.items():
        if key.startswith(PREFIX):
            _check(key, value)
    _truth(settings)


def sequencing(
    signature: Signature, settings: Mapping[str, str], configured: SequenceBatching | None = None
) -> Sequencing | None:
    """Return a model's states and controls; None if the model is stateless. Raises ConfigError if the declared states
    or controls do not match the model's tensors. `configured` is the content of config.pbtxt."""
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    declared = configured or SequenceBatching()
    states = {state.input: state for state in declared.states}
    controls = {control.input: control for control in declared.controls}
    for key, value in settings.items():
        if key.startswith(_STATE):
            spec = _known(key.removeprefix(_STATE), inputs, f"setting {key}")
            states[spec.name] = State(spec.name, value, spec.datatype, spec.dims)
        elif key.startswith(_CONTROL):
            spec = _known(key.removeprefix(_CONTROL), inputs, f"setting {key}")
            controls[spec.name] = Control(spec.name, _KINDS[value], spec.datatype)
    idle = int(settings[_IDLE]) / 1e3 if _IDLE in settings else declared.idle
    is_declared = configured is not None or bool(states or controls)
    if not states:
        states = {state.input: state for state in _recognised(signature, controls)}
    if not is_declared and not states:
        return None
    for state in states.values():
        _fit_state(state, inputs, outputs)
    for control in controls.values():
        _fit_control(control, inputs)
    return Sequencing(tuple(states.values()), tuple(controls.values()), idle, is_declared)


def is_decoupled(settings: Mapping[str, str], configured: bool = False) -> bool:
    """Whether each row of a request's outputs is sent as a separate response."""
    return _truth(settings) if DECOUPLED in settings else configured


def _truth(settings: Mapping[str, str]) -> bool:
    value = settings.get(DECOUPLED, "false")
    if value not in ("true", "false"):
        raise ConfigError(f"setting {DECOUPLED}={value[:40]!r}: choose true or false")
    return value == "true"


def _check(key: str, value: str) -> None:
    if key == _IDLE:
        if not (value.isdecimal() and 1 <= int(value[:12]) <= _LONGEST_IDLE_MS):
            raise ConfigError(f"setting {_IDLE}={value[:40]!r}: give milliseconds from 1 to {_LONGEST_IDLE_MS}")
    elif key.startswith(_CONTROL) and key != _CONTROL:
        if value not in _KINDS:
            raise ConfigError(f"setting {key[:80]}={value[:40]!r}: choose from {', '.join(_KINDS)}")
    elif not key.startswith(_STATE) or key == _STATE or not value:
        raise ConfigError(
            f"invalid setting {key[:80]!r}: write {_STATE}INPUT = OUTPUT, {_CONTROL}INPUT = {'|'.join(_KINDS)}"
            f" or {_IDLE}"
        )


def _known(name: str, inputs: Mapping[str, TensorSpec], what: str) -> TensorSpec:
    if name not in inputs:
        raise ConfigError(
            f"{what[:80]}: the model has no input {name[:60]!r}; its inputs are {', '.join(list(inputs)[:8]) or 'none'}"
        )
    return inputs[name]


def _fit_state(state: State, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> None:
    what, source = f"the state {state.input[:60]!r}", f"{state.output[:60]!r}"
    given, kept = _known(state.input, inputs, what), outputs.get(state.output)
    if kept is None:
        known = ", ".join(list(outputs)[:8])
        raise ConfigError(f"{what} comes from {source}, which is not an output of the model; its outputs are {known}")
    if kept.datatype != given.datatype or (state.datatype and state.datatype != given.datatype):
        raise ConfigError(
            f"the datatypes of {what} must be equal: the input is {given.datatype}, output {source} is {kept.datatype},"
            f" and the configuration says {state.datatype or 'nothing'}"
        )
    if not _agree(given, kept):
        raise ConfigError(
            f"the shapes of {what} must match: the input is {list(given.dims)}, output {source} is {list(kept.dims)}"
        )


def _fit_control(control: Control, inputs: Mapping[str, TensorSpec]) -> None:
    what = f"the control {control.input[:60]!r}"
    spec = _known(control.input, inputs, what)
    if control.datatype and control.datatype != spec.datatype:
        raise ConfigError(f"{what} is {spec.datatype} in the model, but the configuration says {control.datatype}")
    if spec.datatype == "BF16" or (spec.datatype == "BYTES" and control.kind != "corrid"):
        raise ConfigError(
            f"{what} is {spec.datatype}, which cannot hold the control {control.kind!r}; choose another input"
        )


def _recognised(signature: Signature, controls: Mapping[str, Control]) -> Iterator[State]:
    outputs = {spec.name: spec for spec in signature.outputs}
    for spec in signature.inputs:
        names = (pattern.format(spec.name) for pattern in _NEXT)
        fitting = (outputs[name] for name in names if name in outputs)
        kept = next((each for each in fitting if each.datatype == spec.datatype and _agree(spec, each)), None)
        if kept is not None and spec.name not in controls:
            yield State(spec.name, kept.name, spec.datatype, spec.dims)


def _agree(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether a single tensor can have both shapes."""
    if ANY_SHAPE in (one.shape, other.shape):
        return True
    pairs = list(zip(one.dims, other.dims, strict=False))
    return len(one.dims) == len(other.dims) and all(a == b or -1 in (a, b) for a, b in pairs)
