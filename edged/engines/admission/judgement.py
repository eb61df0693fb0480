"""Combine the findings of all stages: which one refuses the model, and which are only warnings. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.config.limits import AdmissionLimits
from edged.engines.child import ChildLost
from edged.ipc.job_messages import Checked
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import Footprint

_ORDER = list(Stage)
# A runtime's vague refusals; a suspicion explains better what is wrong.
_VAGUE = (Category.REFUSED, Category.FAILED)


def first(*findings: Finding | None) -> Finding | None:
    """Return the finding of the earliest stage."""
    found = [finding for finding in findings if finding is not None]
    return min(found, key=lambda finding: _ORDER.index(finding.stage), default=None)


def decided(reference: Checked, suspicion: Finding | None) -> tuple[Finding | None, tuple[Finding, ...]]:
    """Return why the reference does not take a model, and warnings about one that it takes.

    A suspicion about operators, types or shapes explains a refusal; without a refusal it is a warning.
    """
    finding = reference.finding
    if suspicion is None:
        return finding, reference.warnings
    if finding is None:
        return None, (suspicion, *reference.warnings)
    return (suspicion if finding.category in _VAGUE else finding), reference.warnings


def memory(needs: Footprint, limits: AdmissionLimits, size_mb: float, box_mb: int) -> Finding | None:
    """Return a finding if a model cannot fit into memory, by its own declarations."""
    least_mb = needs.least / (1 << 20)
    what = f"tensor {needs.tensor[:100]!r} alone takes {_size(needs.largest)}"
    if needs.weights > needs.largest:
        what = f"its weights alone take {_size(needs.weights)}"
    if box_mb and least_mb > box_mb:
        message = (
            f"the model needs at least {_size(needs.least)} of memory, and this box has {_size(box_mb << 20)}: {what}"
        )
        remedy = "export it with smaller dimensions"
    elif least_mb > limits.most_mb(size_mb):
        most = limits.most_mb(size_mb)
        allowed = f"examining it may use {_size(most << 20)}"
        message = f"the model needs at least {_size(needs.least)} of memory, and {allowed}: {what}"
        remedy = _raise_memory(limits)
    else:
        return None
    node = needs.tensor if needs.largest >= needs.weights else ""
    return Finding(Stage.MEMORY, Category.TOO_MUCH_MEMORY, message, remedy, node)


def lost(error: ChildLost, stage: Stage, limits: AdmissionLimits, seconds: float, runtime: str) -> Finding:
    """Return the finding for a child that was lost at a stage; `runtime` is what it tried, empty for the reader."""
    where = _WHERE[stage].format(runtime=runtime or "edged")
    if error.how == "late":
        message = f"{where} did not end within {seconds:.3g} s"
        return Finding(
            stage, Category.TIMED_OUT, message, f"if it is only slow, raise {_named('seconds')}, now {limits.seconds:g}"
        )
    if error.how == "too large":
        return Finding(stage, Category.TOO_MUCH_MEMORY, f"{where} took more memory than it may", _raise_memory(limits))
    remedy = "see whether an update of the runtime takes it" if runtime else "export the model again"
    return Finding(stage, Category.CRASHED, f"{where} crashed: {error}", remedy)


def completed(finding: Finding | None, limits: AdmissionLimits) -> Finding | None:
    """Add the remedy that depends on the limits."""
    if finding is None or finding.category is not Category.TOO_MUCH_MEMORY or finding.has_own_remedy:
        return finding
    return msgspec.structs.replace(finding, remedy=_raise_memory(limits))


def stage_of(phase: str) -> Stage | None:
    """Return the stage that a progress phase names, if any."""
    return Stage(phase) if phase in _STAGES else None


def is_lasting(finding: Finding | None) -> bool:
    """Whether it would be found again: timeouts and lack of memory depend on the box's load."""
    return finding is None or finding.category not in (Category.TIMED_OUT, Category.TOO_MUCH_MEMORY)


def is_of_reader(finding: Finding) -> bool:
    """Whether a file itself, not its external data, took its reader beyond the limits."""
    return not is_lasting(finding) and finding.stage is not Stage.EXTERNAL_DATA


_STAGES = frozenset(stage.value for stage in Stage)
_WHERE: Mapping[Stage, str] = {
    Stage.FILE: "opening the file",
    Stage.PARSE: "parsing the model",
    Stage.GRAPH: "checking the graph",
    Stage.OPSET: "asking {runtime} for what it takes",
    Stage.OPERATORS: "asking {runtime} for its operators",
    Stage.EXTERNAL_DATA: "reading the external data",
    Stage.MEMORY: "estimating the memory",
    Stage.SESSION: "opening the model with {runtime}",
    Stage.INFERENCE: "running the model with {runtime}",
}


def _raise_memory(limits: AdmissionLimits) -> str:
    return f"if it really needs so much, raise {_named('memory_mb')}, now {limits.memory_mb}"


def _named(field: str) -> str:
    return f"admission.{field} (--{field.replace('_', '-')} of edged inspect)"


def _size(size: int) -> str:
    """Format bytes as `4 TiB`."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.3g} {units[0]}"
