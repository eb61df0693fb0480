"""What each level of ONNX Runtime's graph optimisation does to a model's answers. Runs in a child.

Optimisers fuse and fold, and now and then one is wrong for a model. Here every level is asked the golden probes and
compared with the model as it was written, so that it is known at which level an answer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edged.backends.contract import Order, Session
from edged.backends.ort import session as ort_levels
from edged.errors import EngineUnusable, InvalidInput
from edged.ipc import job_messages as jobs
from edged.store.record import Verdict
from edged.verification import golden
from edged.verification.boxes import ClassMatcher, Matcher, matcher_for
from edged.verification.standard import Tolerance
from edged.verification.verify import Pair, judge


def compare(job: jobs.CompareLevels, session: Session, report: Callable[[jobs.Progress], None]) -> jobs.ComparedLevels:
    """`session` is the reference's. EngineUnusable if it answers nothing itself."""
    order = job.order
    report(jobs.Progress("asking the reference"))
    asked = golden.make(session, order.signature, job.recognition, job.samples, job.shape_range)
    session.close()
    matcher = matcher_for(job.recognition, job.tolerance.box_score)
    found = []
    for number, level in enumerate(ort_levels.NAMES):
        report(jobs.Progress(f"comparing level {level}", number / len(ort_levels.NAMES)))
        found.append(jobs.LevelVerdict(level, _verdict(order, level, asked.samples, job.tolerance, matcher)))
    return jobs.ComparedLevels(tuple(found))


def _verdict(
    order: Order,
    level: str,
    samples: Sequence[golden.Sample],
    tolerance: Tolerance,
    matcher: Matcher | ClassMatcher | None,
) -> Verdict:
    try:
        session = ort_levels.open_at(order, level)
        pairs = (Pair.of(sample, session.infer(sample.inputs)) for sample in samples)
        return judge(pairs, tolerance, matcher)
    except (EngineUnusable, InvalidInput) as error:
        return Verdict(False, f"it does not answer what the unoptimised model answers: {error}", {})
