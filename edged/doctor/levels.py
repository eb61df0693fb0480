"""Which level of ONNX Runtime's graph optimisation changes what a model answers."""

from __future__ import annotations

from collections.abc import Iterator

from edged.backends.contract import REFERENCE
from edged.config.limits import Limits
from edged.doctor.check import Check, Name, ok, warning
from edged.engines.child import run
from edged.ipc import job_messages as jobs
from edged.models.model import Model
from edged.models.settings import FIGURES
from edged.store.record import Verdict
from edged.verification.extent import Extent
from edged.verification.standard import Standard
from edged.verification.verify import FLOORS

_PRECISION = "fp32"  # what is rounded on purpose has wider bounds; the optimiser may only reorder sums
_PERFECT = {figure: 1.0 if figure in FLOORS else 0.0 for figure in FIGURES}
_TOLD = ("finite", "relative_l2", "cosine", "unequal")


async def compare(model: Model, limits: Limits) -> jobs.ComparedLevels:
    """Asks every level in one child. EdgedError where the model itself does not answer."""
    job = jobs.CompareLevels(
        model.order(REFERENCE),
        model.recognition,
        Standard.of(model, _PRECISION).tolerance,
        model.samples,
        Extent.of(model),
    )
    return await run(job, jobs.ComparedLevels, limits)


def judge(name: str, found: jobs.ComparedLevels) -> Iterator[Check]:
    """Judges all levels: a line with the figures of each, and the first that changes the answer is the warning."""
    first = next((each for each in found.levels if not each.verdict.accepted), None)
    figures = "; ".join(f"{each.level}: {_figures(each.verdict)}" for each in found.levels)
    if first is None:
        yield ok(Name.LEVELS, f"no level of optimisation changes its answers ({figures})", name)
        return
    said = f"from level {first.level} on the optimiser changes its answers: {first.verdict.reason} ({figures})"
    remedy = (
        "none is needed to serve it: an engine that answers wrongly is rejected and one of a lower level is tried;"
        " export it differently, or loosen verify.* where the difference is meant"
    )
    yield warning(Name.LEVELS, said, remedy, name)


def _figures(verdict: Verdict) -> str:
    known = verdict.figures
    told = [
        f"{figure} {known[figure]:.3g}" for figure in _TOLD if known.get(figure, _PERFECT[figure]) != _PERFECT[figure]
    ]
    return ", ".join(told) or ("equal" if known else "no answer to compare")
