"""Waves of boxes, and the rules that end a rollout. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from edged.errors import InvalidInput
from edged.formatting import many

_STEP = re.compile(r"(\d+)(%?)")
_FACTOR = re.compile(r"(p99|infer) *> *(\d+(?:\.\d+)?)x")
_WORDS = ("alarms", "failures")


class Figures(msgspec.Struct, frozen=True):
    """A box's figures about a model. `engine` is the engine that serves. `infer_ms` is the median time of one
    inference. `p99_ms` is the 99th percentile of the time from capture to answer, the highest of all cameras. Unknown
    figures are None. `failed` counts failed requests. `alarms` maps the kind, model and camera of each alarm to the
    alarm's message. The messages cannot be the keys, because numbers in a message change while the alarm lasts."""

    engine: str = ""
    backend: str = ""
    infer_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    alarms: dict[str, str] = {}


class Rules(msgspec.Struct, frozen=True):
    """The rules that end a rollout. With `alarms`, a new alarm ends a rollout. With `failures`, a failed request ends a
    rollout. `factors` maps figures (p99, infer) to factors. The rollout ends if a figure after the change exceeds the
    factor times the figure before the change. A box on which the change fails always ends the rollout."""

    alarms: bool = False
    failures: bool = False
    factors: dict[str, float] = {}

    def broken(self, before: Figures, after: Figures) -> str:
        """Return the first rule that a box breaks, as a text; otherwise empty. An unknown figure breaks no rule."""
        if self.alarms and (new := [each for about, each in after.alarms.items() if about not in before.alarms]):
            return f"a new alarm: {new[0]}"
        # The daemon counts the failures of a replaced model from 0 again.
        failed = after.failed - before.failed if after.failed >= before.failed else after.failed
        if self.failures and failed:
            return f"{many(failed, 'request')} failed"
        for figure, factor in self.factors.items():
            was, now = _value(before, figure), _value(after, figure)
            if was and now is not None and now > was * factor:
                return f"{figure} is {now:.3g} ms, more than {factor:g} times the {was:.3g} ms before the change"
        return ""


def _value(figures: Figures, figure: str) -> float | None:
    return figures.p99_ms if figure == "p99" else figures.infer_ms


def parse_rules(text: str) -> Rules:
    """Return the rules in a text such as "alarms or p99 > 1.5x". Raises InvalidInput for other words."""
    words, factors = set(), {}
    for part in filter(None, (each.strip() for each in re.split(r"\bor\b|,", text))):
        found = _FACTOR.fullmatch(part)
        if found is not None and float(found[2]) >= 1:
            factors[found[1]] = float(found[2])
        elif part in _WORDS:
            words.add(part)
        else:
            raise InvalidInput(
                f"--abort-on {part[:40]!r} is not a rule; give alarms, failures, p99 > 1.5x or infer > 1.5x, joined by"
                " 'or'"
            )
    return Rules("alarms" in words, "failures" in words, factors)


def waves(boxes: Sequence[str], canary: int, then: str) -> tuple[tuple[str, ...], ...]:
    """Divide boxes into waves. The first wave has `canary` boxes. Each further wave has `then` boxes: a number such as
    4, or a share of all boxes such as 25%. Raises InvalidInput if `then` is invalid, or if there are no boxes."""
    if not boxes:
        raise InvalidInput("there is no box to change; give --inventory FILE, or several --target")
    found = _STEP.fullmatch(then.strip())
    if found is None or not 0 < int(found[1]) <= (100 if found[2] else 1 << 20):
        raise InvalidInput(
            f"--then {then[:20]!r} is not a number of boxes or a percentage; give, for example, 4 or 25%"
        )
    step = math.ceil(len(boxes) * int(found[1]) / 100) if found[2] else int(found[1])
    starts = [0, *range(max(1, canary), len(boxes), step)]
    return tuple(tuple(boxes[a:b]) for a, b in zip(starts, [*starts[1:], len(boxes)], strict=True))


def unknown(rules: Rules, before: Mapping[str, Figures]) -> tuple[str, ...]:
    """Return a line for each rule that is not applied to some boxes: their figure before the change is unknown."""
    lines = []
    for figure in rules.factors:
        if lost := [box for box, figures in before.items() if not _value(figures, figure)]:
            why = "no camera sends frames" if figure == "p99" else "no engine serves"
            lines.append(
                f"{figure} is unknown on {', '.join(lost)}: {why}; the rule for {figure} is not applied to these boxes"
            )
    return tuple(lines)
