"""The shapes of each model's requests, stored with the engines: the observed shapes, and the range learnt from them.

A learnt range is stored once an engine for it is ready. A target range, whose engines do not exist yet, stays in
memory. So a daemon starts with the engines that exist. A file that is damaged or does not fit its model is removed, and
counted as damaged.
"""

from __future__ import annotations

import contextlib
import math
import threading
from pathlib import Path

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.errors import ConfigError, Unsuitable
from edged.models.model import Model
from edged.serving.extents import MOST_KINDS, Seen
from edged.store import atomic, sealed
from edged.tensors import numpy_dtype

_FORMAT = 1
_KEPT = 1000  # models; the least recently written are removed


class Page(msgspec.Struct, frozen=True):
    """The stored shapes of one model.

    learnt: the learnt range as text. configured: the range of shapes that the settings and the picture size of the
    model defined when `learnt` was stored, as text. If that range has changed since, `learnt` does not apply. widened:
    when builds for wider ranges began, in seconds since the epoch.
    """

    format: int = _FORMAT
    seen: Seen = Seen()
    configured: str = msgspec.field(default="", name="told")
    learnt: str = ""
    widened: tuple[float, ...] = ()


class ShapeBook:
    """Keeps a small file for each model. A model whose content changes gets a new file. If a file cannot be written,
    the newest shapes are lost at the next restart."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute() / "shapes"
        self._aims: dict[Path, Profile] = {}
        self._pages: dict[Path, Page] = {}
        self._writing = threading.Lock()

    def applied(self, model: Model) -> Model:
        """Return the model with its learnt range of shapes. This range is the target that `aim` set, or else the stored
        range, for which an engine was ready."""
        learnt = Profile()
        if model.shape_policy.kind == "learn" and not model.is_static:
            learnt = self._aims.get(self._place(model)) or self._proved(model)
        return model if learnt == model.learnt else msgspec.structs.replace(model, learnt=learnt)

    def aim(self, model: Model, profile: Profile) -> None:
        """Set the target range of a model, for which engines are planned from now on."""
        self._aims[self._place(model)] = profile

    def unaim(self, model: Model) -> None:
        """Remove the target, so that the stored range applies."""
        self._aims.pop(self._place(model), None)

    def page(self, model: Model) -> Page:
        """Return the page of a model; an empty page if the file is missing or damaged."""
        place = self._place(model)
        if place not in self._pages:
            self._pages[place] = self._read(place, model)
        return self._pages[place]

    def is_open(self, model: Model) -> bool:
        """Whether the page is in memory, or not needed because all shapes of the model are fixed."""
        return model.is_static or self._place(model) in self._pages

    def change(self, model: Model, page: Page) -> None:
        """Replace a page in memory. `write` writes it to disk."""
        self._pages[self._place(model)] = page

    def write(self, model: Model) -> None:
        """Write a model's newest page to disk. If several threads call this method, they write one after the other, so
        the newest page remains."""
        place = self._place(model)
        with self._writing, contextlib.suppress(OSError):
            page = self._pages.get(place)
            if page is not None:
                self._make_room()
                sealed.write(place, page)

    def _make_room(self) -> None:
        if not self._root.is_dir():
            self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
        atomic.prune(self._root, _KEPT)

    def _proved(self, model: Model) -> Profile:
        page = self.page(model)
        return Profile.parse(page.learnt) if page.learnt and page.configured == configured_range(model) else Profile()

    def _read(self, place: Path, model: Model) -> Page:
        page = sealed.read(place, Page, "shapes")
        if page is None:
            return Page()
        try:
            _require_sound(page, model)
        except (ValueError, ConfigError) as error:
            sealed.discard(place, "shapes", str(error))
            return Page()
        return page

    def _place(self, model: Model) -> Path:
        return self._root / f"{model.name}-{model.digest[:16]}.json"


def configured_range(model: Model) -> str:
    """Return the range of shapes that the model's settings and picture size define, as text; empty if they define no
    range."""
    try:
        return str(model.configured_profile)
    except Unsuitable:
        return ""


def largest_bytes(profile: Profile, signature: Signature) -> int:
    """Return the bytes of all inputs at the largest shapes of a range. An element of type string counts as 8 bytes."""
    total = 0
    for spec in signature.inputs:
        found = profile.range(spec.name)
        shape = found.maximum if found is not None else tuple(d for d in spec.shape if isinstance(d, int))
        total += math.prod(shape) * numpy_dtype(spec.datatype).itemsize
    return total


def _require_sound(page: Page, model: Model) -> None:
    """Raise ValueError or ConfigError if a page does not fit the model."""
    if page.format != _FORMAT:
        raise ValueError(f"its format is {page.format}, but this version reads only {_FORMAT}")
    seen, inputs = page.seen, {spec.name: spec for spec in model.inspection.signature.inputs}
    named = [seen.smallest, seen.largest, *(kind.shapes for kind in seen.kinds)]
    shapes = [(name, shape) for each in named for name, shape in each.items()]
    if len(seen.kinds) > MOST_KINDS or any(kind.count < 1 for kind in seen.kinds) or seen.requests < 0:
        raise ValueError("its counts are invalid")
    if any(name not in inputs or not inputs[name].admits(shape) or min(shape, default=0) < 0 for name, shape in shapes):
        raise ValueError("it has shapes that the model does not take")
    learnt = Profile.parse(page.learnt)
    for each in learnt.ranges:
        fits = each.name in inputs and all(
            inputs[each.name].admits(shape) for shape in (each.minimum, each.optimum, each.maximum)
        )
        if not fits:
            raise ValueError("its range of input shapes does not fit the model")
    if learnt.ranges:
        open_inputs = {spec.name for spec in inputs.values() if not spec.is_static}
        if {each.name for each in learnt.ranges} != open_inputs:
            raise ValueError("its range of input shapes does not name the same inputs as the model")
        if largest_bytes(learnt, model.inspection.signature) > 1 << 40:
            raise ValueError("its range of input shapes is too large")
