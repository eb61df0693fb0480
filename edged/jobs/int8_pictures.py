"""Chooses the pictures that calibrate an int8 model, and other pictures on which the model is compared with float32.

The user's pictures come first, then frames that were collected from the user's cameras, then pictures that edged draws.
Every fourth of the user's pictures and frames is set aside for the comparison, which chooses ranges and layers.

Later the engine is verified on all of the user's pictures, including those that are used here. The drawn pictures of
verification, and the frames on which engines are judged, are used neither for calibration nor for the comparison.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from edged.backends import registry
from edged.backends.contract import REFERENCE, Order
from edged.errors import EngineUnusable, InvalidInput, Superseded, Unsuitable
from edged.formatting import many
from edged.ipc import job_messages as jobs
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import noise, user_samples
from edged.verification.frames import FrameJudge
from edged.verification.golden import Sample, with_least_noise
from edged.verification.pictures import TO_CALIBRATE, TO_COMPARE
from edged.verification.probes import Pictures, Probe
from edged.verification.standard import ON_FRAMES, Tolerance
from edged.verification.verify import FLOORS, Pair, beyond, judge, matcher_for
from edged.vision.family import Recognition, is_decoded_here

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]

# The largest int8 value of a weight. Weights of 7 bits are for processors on which sums of 8-bit products overflow:
# 2 · 255 · 63 fits into 16 bits.
EIGHT_BITS, SEVEN_BITS = 127.0, 63.0
_ASIDE = 4  # every fourth picture is set aside, if there are at least four
_MOST_ASIDE = 32
_MARGIN = 0.6  # of the tolerance
_MOST_BYTES = 128 << 20  # of the pictures set aside and the reference's answers, which are held in memory


class Outcome(NamedTuple):
    """How an int8 model compares with float32. `loss`: the mean relative L2 difference of the outputs; infinite if
    they cannot be compared."""

    loss: float
    verdict: Verdict


def with_margin(tolerance: Tolerance) -> Tolerance:
    """Return a stricter tolerance. A verdict depends on the worst picture. The engine is verified later on more
    pictures than are set aside here, and the worst of many pictures differs more than the worst of few."""

    def bound(figure: str) -> float:
        value: float = getattr(tolerance, figure)
        return 1 - (1 - value) * _MARGIN if figure in FLOORS else value * _MARGIN

    return Tolerance(**{figure: bound(figure) for figure in Tolerance.__struct_fields__})


class Comparison:
    """Compares models with the reference on pictures. `tolerance` is the tolerance of the engine's verification. The
    comparison uses a stricter tolerance (`with_margin`)."""

    def __init__(
        self,
        probes: Callable[[], Iterator[Probe]],
        order: Order,
        recognition: Recognition,
        tolerance: Tolerance,
        frames: Collection[str] = (),
    ) -> None:
        """`frames` are the names of the pictures that are frames of cameras. Their decoded answers are also compared,
        as in the later judgement of the engine on other frames."""
        self._probes, self._order, self._tolerance = probes, order, with_margin(tolerance)
        self._matcher = matcher_for(recognition, tolerance.box_score)
        self._recognition, self._frames = recognition, frames

    @cached_property
    def samples(self) -> list[Sample]:
        """The pictures with the reference's answers."""
        recipe = msgspec.structs.replace(REFERENCE, threads=self._order.recipe.threads)
        reference = registry.load(REFERENCE.backend).open(msgspec.structs.replace(self._order, recipe=recipe))
        found, size = list[Sample](), 0
        for probe in self._probes():
            try:
                answer = {name: array.copy() for name, array in reference.infer(probe.inputs).items()}
                moved = reference.infer(noise.nudged(probe.inputs))
            except (EngineUnusable, InvalidInput):  # verification reports such a picture
                continue
            own = noise.measured(answer, moved)
            sample = Sample(probe.inputs, answer, probe.kind, probe.name, probe.placement, own)
            size += sample.size
            if found and size > _MOST_BYTES:
                break
            found.append(sample)
        reference.close()
        return with_least_noise(found)

    def of(self, run: Run) -> Outcome:
        """Compare a model with the reference; `run` runs the model."""
        pairs = [Pair.of(sample, run(sample.inputs)) for sample in self.samples]
        verdict = judge(pairs, self._tolerance, self._matcher)
        if verdict.accepted and (reason := self._difference_on_frames(pairs)):
            verdict = Verdict(False, reason, verdict.figures)
        return Outcome(_loss(pairs), verdict)

    def _difference_on_frames(self, pairs: Sequence[Pair]) -> str:
        """Return, as text, the figures that are beyond the tolerance on frames; empty without such figures. Single
        classes and cameras are not judged, because there are too few frames."""
        if not self._frames or self._recognition.family is None or not is_decoded_here(self._recognition):
            return ""
        judging = FrameJudge(self._recognition, self._tolerance, "", "int8")
        for pair in pairs:
            if pair.picture in self._frames and (placed := pair.placement) is not None:
                with contextlib.suppress(ValueError):  # the reference's own answer is not finite
                    judging.add(pair.picture, "", pair.expected, pair.answer, placed, (placed.width, placed.height))
        figures = judging.judgement("").figures
        reasons = (beyond(figure, figures[figure], self._tolerance) for figure in ON_FRAMES if figure in figures)
        found = "; ".join(filter(None, reasons))
        return f"{found}, on {many(judging.frames, 'frame')} of cameras" if found else ""


def _loss(pairs: Sequence[Pair]) -> float:
    shares = [
        _relative(expected, found)
        for pair in pairs
        for name, expected in pair.expected.items()
        if (found := pair.answer.get(name)) is not None and found.shape == expected.shape and expected.dtype.kind == "f"
    ]
    loss = float(np.mean(shares)) if shares else np.inf
    return loss if np.isfinite(loss) else np.inf


def _relative(expected: Array, found: Array) -> float:
    sound = np.isfinite(expected)
    with np.errstate(all="ignore"):
        one, other = np.where(sound, expected, 0).astype(np.float64), np.where(sound, found, 0).astype(np.float64)
        norm = np.linalg.norm(one)
        return float(np.linalg.norm(other - one) / norm) if norm else float(np.linalg.norm(other) > 0)


class Way(NamedTuple):
    """How a model is converted to int8. `asymmetric`: whether to use the second recipe of `int8_layers`. Without a
    `comparison`, ranges cover the largest values, and nothing is corrected or repaired. Repairs take at most `repair_s`
    seconds, and end at the monotonic time `until` at the latest. Before each step, `notify` is called with the name of
    the current phase. `levels` is the largest int8 value of a weight."""

    asymmetric: bool = False
    comparison: Comparison | None = None
    repair_s: float = 0.0
    notify: Callable[[str], None] = lambda phase: None
    until: float = math.inf
    levels: float = EIGHT_BITS


def plan(job: jobs.Build, notes: list[str]) -> tuple[Iterator[dict[str, Array]], Comparison | None]:
    """Return the inputs for calibration, which are read one at a time, and the comparison for the job's tolerance (None
    without a tolerance).

    Raises Unsuitable if the model takes no pictures, or if the collected frames are gone. Raises Superseded if the
    digest of the pictures is not the digest in the engine's key. Reading the returned inputs also raises Superseded if
    a picture has changed. `notes` receives remarks.
    """
    recognition, recipe = job.recognition, job.order.recipe
    if recognition.preprocess is None:
        raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {recognition.picture}")
    found = user_samples.calibration_pictures(job.samples)
    collected = job.collected
    if user_samples.calibration_name(recognition, found, collected.id if collected else "") != recipe.calibration:
        raise Superseded(
            "the sample pictures were changed after the engine was planned, so the engine must be planned again"
        )
    frames = {digest: path for path, digest in collected.calibrate.items() if Path(path).exists()} if collected else {}
    if collected is not None and not frames:
        raise Unsuitable(
            "the collected frames for int8 are gone, because their retention ended; collect new frames"
            " (edged samples collect), or drop the collection (edged samples remove)"
        )
    if collected is not None and (gone := len(collected.calibrate) - len(frames)):
        notes.append(f"{gone} of {len(collected.calibrate)} collected frames are gone: their retention ended")
    pictures = Pictures(job.order.signature, recognition)
    used, aside = dict[str, str](), dict[str, str]()
    for some in (found, frames):
        for number, (digest, path) in enumerate(some.items(), 1):
            is_aside = len(some) >= _ASIDE and number % _ASIDE == 0 and len(aside) < _MOST_ASIDE
            (aside if is_aside else used)[digest] = path

    def probes(some: Mapping[str, str], seed: int) -> Iterator[Probe]:
        for digest, path in some.items():
            try:
                yield pictures.sample(Path(path), digest)
            except InvalidInput as error:
                notes.append(f"int8 is not calibrated on {Path(path).name}: {error}")
        yield from pictures.drawn(seed)

    comparison = None
    if job.tolerance is not None:
        names = {Path(path).name for path in aside.values() if path in frames.values()}
        comparison = Comparison(lambda: probes(aside, TO_COMPARE), job.order, recognition, job.tolerance, names)
    return (probe.inputs for probe in probes(used, TO_CALIBRATE)), comparison
