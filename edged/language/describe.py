"""Describes what cameras see. A rule watches a camera's detections, and sends the best frame to a language model.

A rule makes one description at a time, and at most one per `every_seconds`. Descriptions have the lowest priority: they
wait for all chats. A description is about the best frame of a period of `seconds`. So the rule needs no frames in the
first `every_seconds` minus `seconds` after a description.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing

from edged.backends.language.contract import Generation, Sampling
from edged.config.tables import Describe
from edged.errors import EdgedError, InvalidInput
from edged.events import Described, What
from edged.language.model import PlannedLanguageModel
from edged.serving.taps import Tapped
from edged.tasks import TaskGroup
from edged.vision.detections import Detections, class_name

_LOG = logging.getLogger("edged.language")
_LOOK_SECONDS = 0.2  # least time between two frames that a rule examines
_GAP_SECONDS = 1.5  # if the frames of this time show no class of the rule, the objects have gone
_MOST_INTERVALS = 3  # if no frame comes for this many of the usual intervals, earlier frames no longer count
_LONGEST_INTERVAL = 60.0  # a longer time without a frame does not count as an interval between frames


class Watch:
    """One rule, and what its camera has shown. Pure: the caller gives the times, in monotonic seconds."""

    def __init__(self, rule: Describe) -> None:
        self.rule = rule
        self._looked = self._described = -1e9
        self._shown = self._seen = -1e9  # when the last frame came, and the last frame with a class of the rule
        self._intervals = 0.0, 0.0  # the last two intervals between frames, each at most _LONGEST_INTERVAL
        self._since: float | None = None  # since when frames show a class of the rule
        self._best: tuple[float, Tapped] | None = None

    def wants(self, now: float) -> bool:
        """Whether the rule examines a frame that arrives at `now`. If so, record `now`."""
        is_due = now - self._described >= self.rule.every_seconds - self.rule.seconds
        if not is_due or now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def see(self, frame: Tapped, score: float | None, now: float) -> Tapped | None:
        """Record a frame. `score` is the best score of the rule's classes in this frame; None if the frame shows no
        such class. Return the frame to describe, or None if no description is due."""
        interval = now - self._shown
        is_interrupted = interval > max(_GAP_SECONDS, _MOST_INTERVALS * min(self._intervals))
        self._shown = now
        if interval <= _LONGEST_INTERVAL:
            self._intervals = self._intervals[1], interval
        is_seen = score is not None and score >= self.rule.score
        if is_interrupted or (not is_seen and now - self._seen > _GAP_SECONDS):
            self._since, self._best = None, None
        if score is None or not is_seen:
            return None
        self._seen = now
        if self._since is None:
            self._since = now
        if self._best is None or score > self._best[0]:
            self._best = score, frame
        if now - self._since < self.rule.seconds or now - self._described < self.rule.every_seconds:
            return None
        self._described, (_, best) = now, self._best
        self._since, self._best = now, None
        return best


class Describer:
    """Applies the rules of the configuration. This is a `Tap` of all streams: it receives copies of answered frames.
    `find` returns a language model by name, or raises an error."""

    def __init__(
        self, find: Callable[[str], PlannedLanguageModel], emit: Callable[[What, str], None], tasks: TaskGroup
    ) -> None:
        """The attribute `give`, which may be set later, is called with camera, rule and text of each description."""
        self.give: Callable[[str, str, str], None] = lambda camera, rule, text: None
        self._find, self._emit, self._tasks = find, emit, tasks
        self._watches: dict[str, Watch] = {}
        self._busy: set[str] = set()
        self.problems: dict[str, str] = {}  # maps each rule whose last description failed to the reason

    def reconfigure(self, rules: Mapping[str, Describe]) -> None:
        """Apply the rules of the configuration. An unchanged rule keeps what it has seen."""
        before = self._watches
        self._watches = {
            name: before[name] if name in before and before[name].rule == rule else Watch(rule)
            for name, rule in rules.items()
        }
        self.problems = {name: why for name, why in self.problems.items() if name in rules}

    def troubles(self) -> Iterator[tuple[str, str]]:
        """Yield (camera, message) for each rule whose last description failed."""
        for name, why in self.problems.items():
            yield self._watches[name].rule.camera, f"rule describe.{name} gives no description: {why}"

    def wants(self, model: str, camera: str, now: float) -> bool:
        """Whether a rule examines a frame that this camera sends now (`Tap.wants`)."""
        wanting = [watch.wants(now) for watch in self._watches.values() if watch.rule.camera == camera]
        return any(wanting)

    def take(self, frame: Tapped) -> None:
        """Pass an answered frame to the rules of its camera, and start the descriptions that are due (`Tap.take`)."""
        if frame.answer.detections is None:
            return
        now, names = time.monotonic(), frame.answer.engine.recognition.names
        found = Detections.unpack(frame.answer.detections)
        for name, watch in self._watches.items():
            rule = watch.rule
            if rule.camera != frame.camera or name in self._busy:
                continue
            scores = [
                float(score)
                for score, number in zip(found.scores, found.class_ids, strict=True)
                if not rule.classes or class_name(names, int(number)) in rule.classes
            ]
            best = watch.see(frame, max(scores, default=None), now)
            if best is not None:
                self._busy.add(name)
                self._tasks.start(self._describe(name, rule, best))

    async def _describe(self, name: str, rule: Describe, frame: Tapped) -> None:
        began, text = time.monotonic(), ""
        try:
            planned = self._find(rule.model)
            wanted = await self._wanted(rule, planned, frame)
            async with aclosing(planned.generate(wanted, client=f"rule {name}", is_low=True)) as texts:
                async for each in texts:
                    text += each.text
        except EdgedError as error:
            if self.problems.get(name) != str(error):
                _LOG.warning("rule describe.%s gives no description: %s", name, error)
            if name in self._watches:  # the rule may have been removed meanwhile
                self.problems[name] = str(error)
            return
        finally:
            self._busy.discard(name)
        self.problems.pop(name, None)
        text = text.strip()
        self._emit(Described(rule.camera, name, text, round(time.monotonic() - began, 3)), rule.model)
        self.give(rule.camera, name, text)

    async def _wanted(self, rule: Describe, planned: PlannedLanguageModel, frame: Tapped) -> Generation:
        question = rule.prompt.replace("{camera}", rule.camera).replace("{detections}", _listed(frame))
        files = planned.files
        pictures: tuple[bytes, ...] = ()
        content: object = question
        if files is not None and files.takes_pictures:
            pictures = (await asyncio.to_thread(_encoded, frame),)
            content = [{"type": "image"}, {"type": "text", "text": question}]
        system = [{"role": "system", "content": planned.settings.system}] if planned.settings.system else []
        messages = json.dumps([*system, {"role": "user", "content": content}])
        return Generation(messages, pictures=pictures, sampling=Sampling(), most_tokens=rule.max_tokens)


def _listed(frame: Tapped) -> str:
    """Return the number of detections of each class as text: `2 person, 1 car`."""
    found = Detections.unpack(frame.answer.detections or b"")
    names = frame.answer.engine.recognition.names
    counts = Counter(class_name(names, int(number)) for number in found.class_ids)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"


def _encoded(frame: Tapped) -> bytes:
    """Return the frame as an encoded picture. A frame without a pixel format is already encoded and is returned
    unchanged. Raw pixels are encoded as JPEG. Raises InvalidInput if the frame cannot be encoded."""
    if not frame.pixel_format:
        return frame.data
    from edged.vision import draw, image  # OpenCV, which few daemons need

    try:
        form = image.PixelFormat(frame.pixel_format)
        pixels = image.from_raw(frame.data, form, frame.width, frame.height, frame.stride)
    except (EdgedError, ValueError) as error:
        raise InvalidInput(f"the frame cannot be encoded: {error}") from error
    return draw.encode_jpeg(pixels)
