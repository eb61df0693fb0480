"""Carries out a rollout, wave after wave. Figures before and after the change are compared; if a box breaks a rule, all
changed boxes are changed back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from edged.cli import remote
from edged.cli.inventory import Box
from edged.cli.rollout import changes, plan
from edged.cli.rollout.changes import Change
from edged.cli.rollout.plan import Figures, Rules
from edged.cli.rollout.record import BoxRecord, Record
from edged.client import address
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.client.client import Client

_POLL_S = 2.0


def run(record: Record, change: Change, boxes: Sequence[Box], report: Callable[[str], None]) -> bool:
    """Carry out a rollout, or the rest of an interrupted rollout, and return whether it was completed. `report`
    receives a line for every step. If a box fails or breaks a rule, all changed boxes are changed back."""
    rollout = _Rollout(record, change, {box.name: box for box in boxes}, report)
    return rollout.carry_out()


def unreachable(boxes: Sequence[Box]) -> dict[str, str]:
    """Return a mapping from the names of the boxes that do not answer to the reasons."""

    def ask(client: Client, report: Callable[[str], None]) -> bool:
        client.status()
        return True

    outcomes = remote.call_all(boxes, ask)
    return {each.box: each.error for each in outcomes if isinstance(each, remote.BoxOutcome) and each.answer is None}


class _Rollout:
    def __init__(self, record: Record, change: Change, boxes: dict[str, Box], report: Callable[[str], None]) -> None:
        self._record, self._change, self._boxes, self._print = record, change, boxes, report
        self._rules: Rules = plan.parse_rules(record.abort_on)

    def carry_out(self) -> bool:
        record = self._record
        if record.only_undo:
            self._abort(record.why or "the rollout was interrupted after a failure")
            return False
        for number, wave in enumerate(record.waves, 1):
            if problem := self._wave(number, wave):
                self._abort(f"wave {number}: {problem}")
                return False
        record.state = "done"
        self._note(f"all {len(record.boxes)} boxes are changed")
        return True

    def _wave(self, number: int, wave: Sequence[str]) -> str:
        """Change the boxes of a wave that are not changed yet. Then watch the wave, unless it was already watched to
        the end. Return why the rollout must end, or an empty text."""
        left = [name for name in wave if self._record.boxes[name].state in ("waiting", "started")]
        if left or number > self._record.watched:
            self._note(f"wave {number} of {len(self._record.waves)}: {', '.join(left or wave)}")
        if left and (problem := self._change_boxes(left)):
            return problem
        if number > self._record.watched:
            if problem := self._watch(wave):
                return problem
            self._record.watched = number
            self._record.save()
        return ""

    def _change_boxes(self, names: Sequence[str]) -> str:
        if problem := self._each(names, self._look_before):
            return problem
        for line in plan.unknown(self._rules, {name: self._record.boxes[name].before or Figures() for name in names}):
            self._note(line)
        for name in names:
            self._record.boxes[name].state = "started"
        self._record.save()
        return self._each(names, self._apply)

    def _look_before(self, name: str, client: Client) -> None:
        box = self._record.boxes[name]
        if box.had is None:  # otherwise keep the first values: after an interruption the box may have changed
            box.had, box.before = self._change.had(client), changes.measure(client, self._record.order.model)

    def _apply(self, name: str, client: Client) -> None:
        box, began = self._record.boxes[name], time.monotonic()
        self._change.apply(client, box.had or {})
        box.state, box.seconds = "done", round(time.monotonic() - began, 1)
        self._record.save()  # other boxes of the wave may take hours

    def _watch(self, names: Sequence[str]) -> str:
        """Compare the figures of each box with those before the change, until `watch_s` seconds have passed or a box
        fails. Return the failures as one text, empty if no box failed."""
        end = time.monotonic() + self._record.watch_s
        while True:
            if problem := self._each(names, self._compare, is_silent=True):
                return problem
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(_POLL_S, left))
        for name in names:
            self._note(_compared(name, self._record.boxes[name]))
        return ""

    def _compare(self, name: str, client: Client) -> None:
        box = self._record.boxes[name]
        box.after = changes.measure(client, self._record.order.model)
        if broken := self._rules.broken(box.before or Figures(), box.after):
            raise _Broken(broken)

    def _each(self, names: Iterable[str], work: Callable[[str, Client], None], *, is_silent: bool = False) -> str:
        """Call `work` for several boxes at the same time. Record the failures and return them as one text, empty if all
        boxes succeeded. With `is_silent`, save the record only after a failure."""
        failed = self._call(names, work)
        for name, why in failed.items():
            box = self._record.boxes[name]
            # A box that failed while it was waiting is unchanged, so it needs no rollback.
            box.state, box.problem = ("failed" if box.state != "waiting" else "waiting"), why
            self._note(f"{name}: {why}")
        if not is_silent:
            self._record.save()
        return "; ".join(f"{name}: {why}" for name, why in failed.items())

    def _call(self, names: Iterable[str], work: Callable[[str, Client], None]) -> dict[str, str]:
        boxes = [self._boxes[name] for name in names]
        by_target = {address.resolve(box.target): box.name for box in boxes}

        def call(client: Client, report: Callable[[str], None]) -> bool:
            work(by_target[client.target], client)
            return True

        outcomes = remote.call_all(boxes, call)
        return {each.box: each.error for each in outcomes if isinstance(each, remote.BoxOutcome) and not each.answer}

    def _abort(self, why: str) -> None:
        """Change back all changed boxes that are not changed back yet."""
        record = self._record
        record.state, record.why = "aborting", why
        self._note(f"aborted: {why}")
        changed = [name for name, box in record.boxes.items() if box.state != "waiting"]
        failed = self._call([name for name in changed if record.boxes[name].state != "rolled back"], self._undo)
        for name, problem in failed.items():
            record.boxes[name].state, record.boxes[name].problem = "not rolled back", problem
            self._note(f"{name}: not rolled back: {problem}")
        record.state = "aborted"
        back = sum(record.boxes[name].state == "rolled back" for name in changed)
        self._note(f"{back} of {len(changed)} changed boxes are rolled back")

    def _undo(self, name: str, client: Client) -> None:
        box = self._record.boxes[name]
        done = self._change.undo(client, box.had or {})
        box.state = "rolled back"
        self._note(f"{name}: {done}")

    def _note(self, text: str) -> None:
        self._record.note(text)
        self._print(text)


class _Broken(EdgedError):
    """Raised for a box that breaks a rule."""


def _compared(name: str, box: BoxRecord) -> str:
    before, after = box.before or Figures(), box.after or Figures()
    figures = []
    for what, was, now in (("infer", before.infer_ms, after.infer_ms), ("p99", before.p99_ms, after.p99_ms)):
        if now is not None:
            figures.append(f"{what} {now:.3g} ms" + (f" ({was:.3g} before)" if was is not None else ""))
    serves = f"serves with {after.backend}" if after.backend else "changed"
    return f"{name}: {', '.join([f'{serves} after {box.seconds:g} s', *figures])}"
