"""The settings `verify.FIGURE` and, more specific, `verify.PRECISION.FIGURE`: how far an engine of a model may be from
the reference. What the figures mean is told where they are used, in `edged.verification.standard`.
"""

from __future__ import annotations

from collections.abc import Mapping

from edged.errors import ConfigError
from edged.vision.settings import nearest, number

PREFIX = "verify."
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
# Every figure that has a bound, with the largest bound that it may have; the least is 0.
FIGURES = {
    "finite": 1.0,
    "cosine": 1.0,
    "relative_l2": 100.0,
    "element": 100.0,
    "outliers": 1.0,
    "unequal": 1.0,
    "top1": 1.0,
    "boxes": 1.0,
    "box_score": 1.0,
    "class_score": 1.0,
}


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for a name under `verify.` that does not exist, or a value that no bound can have."""
    for key in filter(lambda key: key.startswith(PREFIX), settings):
        precision, dot, figure = key[len(PREFIX) :].rpartition(".")
        if figure not in FIGURES:
            raise ConfigError(f"there is no figure {figure!r} to verify by, as {key} says; {nearest(figure, FIGURES)}")
        if dot and precision not in PRECISIONS:
            raise ConfigError(f"there is no precision {precision!r}, as {key} says; {nearest(precision, PRECISIONS)}")
        number(settings, key, 0.0, FIGURES[figure])


def bounds(settings: Mapping[str, str], precision: str) -> dict[str, float]:
    """The bounds that the settings give for engines of a precision, by figure."""
    given: dict[str, float] = {}
    for prefix in (PREFIX, f"{PREFIX}{precision}."):  # the more specific one last, so that it wins
        for figure, most in FIGURES.items():
            value = number(settings, prefix + figure, 0.0, most)
            if value is not None:
                given[figure] = value
    return given
