"""Discs that move and bounce off the walls and each other: the positions in a drawn scene, by frame."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PERIOD = 1024
"""Frames until a track runs backwards, which bounds the memory and the time to reach any frame."""


@dataclass(frozen=True)
class Disc:
    """A disc in pixels, its velocity in pixels per frame."""

    x: float
    y: float
    vx: float
    vy: float
    radius: float


@dataclass(frozen=True)
class Track:
    """The discs of a scene at each frame: computed on demand, cached, and deterministic."""

    start: tuple[Disc, ...]
    width: float
    height: float
    _known: list[tuple[Disc, ...]] = field(default_factory=list, repr=False, compare=False)

    def at(self, frame: int) -> tuple[Disc, ...]:
        """The discs at a frame (any integer)."""
        step = fold(frame)
        if not self._known:
            self._known.append(self.start)
        while len(self._known) <= step:
            self._known.append(advance(self._known[-1], self.width, self.height))
        return self._known[step]


def fold(frame: int) -> int:
    """Maps any frame to 0..PERIOD, forwards and then backwards, so that motion has no jump."""
    place = frame % (2 * PERIOD)
    return min(place, 2 * PERIOD - place)


def advance(discs: tuple[Disc, ...], width: float, height: float) -> tuple[Disc, ...]:
    """One frame later: every disc is inside the walls, and those that met have bounced."""
    moved = [Disc(d.x + d.vx, d.y + d.vy, d.vx, d.vy, d.radius) for d in discs]
    for i in range(len(moved)):
        for j in range(i + 1, len(moved)):
            moved[i], moved[j] = _bounce(moved[i], moved[j])
    return tuple(_inside(d, width, height) for d in moved)


def _bounce(a: Disc, b: Disc) -> tuple[Disc, Disc]:
    dx, dy = b.x - a.x, b.y - a.y
    reach = a.radius + b.radius
    distance = math.hypot(dx, dy)
    if distance >= reach:
        return a, b
    nx, ny = (dx / distance, dy / distance) if distance else (1.0, 0.0)
    push = (reach - distance) / 2
    # Equal masses exchange the velocity along the line between them; discs already parting keep theirs.
    closing = max((a.vx - b.vx) * nx + (a.vy - b.vy) * ny, 0.0)
    return (
        Disc(a.x - nx * push, a.y - ny * push, a.vx - closing * nx, a.vy - closing * ny, a.radius),
        Disc(b.x + nx * push, b.y + ny * push, b.vx + closing * nx, b.vy + closing * ny, b.radius),
    )


def _inside(d: Disc, width: float, height: float) -> Disc:
    x, vx = _wall(d.x, d.vx, d.radius, width - d.radius)
    y, vy = _wall(d.y, d.vy, d.radius, height - d.radius)
    return Disc(x, y, vx, vy, d.radius)


def _wall(at: float, speed: float, low: float, high: float) -> tuple[float, float]:
    if at < low:
        return low, abs(speed)
    if at > high:
        return high, -abs(speed)
    return at, speed
