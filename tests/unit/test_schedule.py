"""The schedule: order within each queue, shares between queues, batches, and no lost work."""

from __future__ import annotations

import math
import weakref
from collections import Counter, deque
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.errors import Overloaded
from edged.serving.schedule import Batching, Schedule, Share


class Piece:
    """A piece of work. Names of requests begin with "r"."""

    def __init__(
        self, name: object, wanted: bool = True, expires: float = math.inf, received: float = 0.0, frame: bool = True
    ) -> None:
        self.name, self.is_wanted, self.expires, self.received = name, wanted, expires, received
        self.is_frame = frame and not str(name).startswith("r")
        self.group, self.rows = ("frames" if self.is_frame else None), 1

    def __repr__(self) -> str:
        return f"{self.name}{'' if self.is_wanted else ' (unwanted)'}"


def schedule_of(*names: str) -> Schedule[Piece]:
    """Return a schedule with requests ("r1") and frames ("a1" is a frame of camera a), added in this order."""
    schedule = Schedule[Piece](64)
    for name in names:
        if name.startswith("r"):
            schedule.push(Piece(name))
        else:
            schedule.offer(name[0], Piece(name))
    return schedule


def next_of(schedule: Schedule[Piece], now: float = 0.0) -> Piece | None:
    work = schedule.choose(now).work
    assert len(work) <= 1
    return work[0] if work else None


def chosen(schedule: Schedule[Piece]) -> list[object]:
    return [work.name for work in iter(lambda: next_of(schedule), None)]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["a1", "b1", "a2", "a3"], ["a3", "b1"]),
        (["a1", "r1", "b1", "r2"], ["a1", "r1", "b1", "r2"]),
        (["r1", "r2", "r3", "a1"], ["r1", "a1", "r2", "r3"]),
    ],
    ids=["a newer frame keeps the place", "in turns", "requests share one queue"],
)
def test_schedule_equal_queues_take_turns(names: list[str], order: list[str]) -> None:
    assert chosen(schedule_of(*names)) == order


def test_schedule_camera_waits_for_at_most_one_turn_of_every_other_queue() -> None:
    schedule = schedule_of(*(f"r{number}" for number in range(8)), "a", "b", "c")
    for _ in range(3):
        schedule.choose()
        schedule.offer("a", Piece("a"))
    assert chosen(schedule)[:2] == ["c", "r1"]


def test_schedule_equal_queues_are_served_longest_ago_first() -> None:
    schedule = schedule_of("c")
    assert chosen(schedule) == ["c"]
    for name in ("a0", "a1", "c"):
        schedule.queue(name[0], Piece(name))
    assert chosen(schedule) == ["a0", "c", "a1"]


def test_schedule_full_refuses_requests_and_accepts_frames() -> None:
    schedule = Schedule[Piece](2)
    schedule.push(Piece("r1"))
    gone = Piece("r2")
    schedule.push(gone)
    with pytest.raises(Overloaded):
        schedule.push(Piece("r3"))
    for camera in range(10):
        schedule.offer(camera, Piece("frame"))
    gone.is_wanted = False
    schedule.push(Piece("r4"))
    assert Counter(chosen(schedule)) == {"r1": 1, "r4": 1, "frame": 10}


def test_schedule_work_cancelled_while_it_waits_is_dropped() -> None:
    schedule = schedule_of("a1", "r1")
    cancelled = [Piece("r2"), Piece("b1"), Piece("again")]
    schedule.push(cancelled[0])
    schedule.offer("b", cancelled[1])
    schedule.retry(cancelled[2])
    for piece in cancelled:
        piece.is_wanted = False
    assert chosen(schedule) == ["a1", "r1"]
    assert len(schedule) == 0


# -- shares -----------------------------------------------------------------------------------------------------------


def served(schedule: Schedule[Piece], cameras: dict[str, Share], turns: int) -> Counter[str]:
    """Return how often each camera is served if every camera always has a frame."""
    counts: Counter[str] = Counter()
    for name, share in cameras.items():
        schedule.offer(name, Piece(name), share)
    for _ in range(turns):
        work = next_of(schedule)
        assert work is not None
        counts[str(work.name)] += 1
        schedule.offer(str(work.name), Piece(work.name), cameras[str(work.name)])
    return counts


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=12))
def test_share_is_proportional_to_weight(weights: list[float]) -> None:
    cameras = {f"camera {index}": Share(weight) for index, weight in enumerate(weights)}
    turns = round(40 * sum(weights) / min(weights))
    counts = served(Schedule[Piece](4), cameras, turns)
    for name, share in cameras.items():
        due = turns * share.weight / sum(weights)
        assert abs(counts[name] - due) <= 1 + 0.01 * due


def test_share_higher_priority_is_first_while_it_has_work() -> None:
    schedule = Schedule[Piece](4)
    cameras = {"door": Share(priority=1), "yard": Share(weight=100.0), "street": Share()}
    assert served(schedule, cameras, 50) == {"door": 50}
    assert [next_of(schedule).name for _ in range(2)] == ["door", "yard"]  # type: ignore[union-attr]


def test_share_idle_queue_gains_no_credit() -> None:
    schedule = Schedule[Piece](4)
    busy = served(schedule, {"a": Share(), "b": Share()}, 1000)
    assert busy["a"] == busy["b"] == 500
    counts = served(schedule, {"a": Share(), "b": Share(), "late": Share()}, 300)
    assert all(99 <= counts[name] <= 101 for name in ("a", "b", "late"))


def test_share_queue_that_withdraws_and_returns_gains_nothing() -> None:
    schedule = Schedule[Piece](4)
    counts: Counter[str] = Counter()
    for name in ("steady", "hopping"):
        schedule.offer(name, Piece(name))
    for _ in range(600):
        work = next_of(schedule)
        assert work is not None
        counts[str(work.name)] += 1
        schedule.offer(str(work.name), Piece(work.name))
        waiting = Piece("hopping")
        schedule.offer("hopping", waiting)
        schedule.withdraw("hopping", waiting)
        schedule.offer("hopping", Piece("hopping"))
    assert abs(counts["steady"] - counts["hopping"]) <= 2


def test_share_queue_that_leaves_a_higher_priority_gains_nothing() -> None:
    schedule, low = Schedule[Piece](4), Share()
    served(schedule, {"a": low, "b": low}, 1000)
    for _ in range(20):
        schedule.queue("sly", Piece("sly"), Share(priority=5))
    schedule.queue("sly", Piece("sly"), low)
    for name in "ab" * 20:
        schedule.queue(name, Piece(name), low)
    assert 9 <= chosen(schedule)[:30].count("sly") <= 11


def test_share_queue_that_enters_a_higher_priority_loses_nothing() -> None:
    schedule, high = Schedule[Piece](4), Share(priority=5)
    served(schedule, {"risen": Share()}, 1000)
    served(schedule, {"old": high}, 10)
    counts = served(schedule, {"risen": high, "old": high}, 100)
    assert abs(counts["risen"] - counts["old"]) <= 2, counts


def test_schedule_forgets_queues_without_work() -> None:
    class Key:
        """A camera."""

    schedule, alive = Schedule[Piece](4), weakref.WeakSet[Key]()
    for _ in range(5000):
        key = Key()
        alive.add(key)
        schedule.offer(key, Piece("frame"), Share(weight=0.01))
        assert next_of(schedule) is not None
    assert len(alive) <= 1024


# -- batches ----------------------------------------------------------------------------------------------------------


def batch(schedule: Schedule[Piece], batching: Batching, now: float = 0.0) -> list[object]:
    return [work.name for work in schedule.choose(now, batching).work]


def test_batch_takes_frames_of_several_cameras_in_their_turns() -> None:
    schedule = schedule_of("a", "b", "c", "d", "e")
    assert batch(schedule, Batching(3)) == ["a", "b", "c"]
    schedule.offer("a", Piece("a"))
    assert batch(schedule, Batching(3)) == ["d", "e", "a"]
    assert batch(schedule, Batching(3)) == []


@pytest.mark.parametrize(
    ("names", "again", "batches"),
    [
        (["a", "r1", "b"], [], [["a", "b"], ["r1"]]),
        (["a", "b"], ["again 1", "again 2"], [["again 1"], ["again 2"], ["a", "b"]]),
    ],
    ids=["work without a group", "retried work first"],
)
def test_batch_excludes_work_that_must_run_alone(names: list[str], again: list[str], batches: list[list[str]]) -> None:
    schedule = schedule_of(*names)
    for name in again:
        schedule.retry(Piece(name))
    assert [batch(schedule, Batching(8)) for _ in batches] == batches


def test_batch_waits_for_more_frames_until_the_first_is_due() -> None:
    schedule, patient = Schedule[Piece](4), Batching(2, wait=0.5)
    schedule.offer("a", Piece("a", received=10.0))
    schedule.push(Piece("r1"))
    assert batch(schedule, patient, now=10.1) == ["r1"]  # a request is not delayed for more frames
    choice = schedule.choose(10.1, patient)
    assert (choice.work, choice.again_at) == ((), 10.5)
    assert batch(schedule, patient, now=10.5) == ["a"]
    schedule.offer("a", Piece("a", received=11.0))
    schedule.offer("b", Piece("b", received=11.1))
    assert batch(schedule, patient, now=11.1) == ["b", "a"]
    schedule.offer("a", Piece("a", received=12.0, expires=12.4))
    assert batch(schedule, patient, now=12.0) == ["a"]  # a longer wait would be too late


def test_batch_respects_weights() -> None:
    schedule, counts = Schedule[Piece](4), Counter[str]()
    for name, share in {"heavy": Share(3.0), "light": Share(1.0), "other": Share(1.0)}.items():
        for number in range(600):
            schedule.queue(name, Piece(f"{name} {number}"), share)
    for _ in range(100):
        work = schedule.choose(0.0, Batching(5)).work
        assert len(work) == 5
        counts.update(str(each.name).split()[0] for each in work)
    assert abs(counts["heavy"] - 300) <= 3


class Turns(RuleBasedStateMachine):
    """Any sequence of calls: all work comes out once, in the order of its queue, and every queue is served."""

    LIMIT = 3

    @initialize()
    def begin(self) -> None:
        self.schedule = Schedule[Piece](self.LIMIT)
        self.queues: dict[str | None, deque[Piece]] = {}
        self.again: deque[Piece] = deque()
        self.now = 0.0
        self.passed: Counter[str | None] = Counter()  # turns of other queues while work waited

    def waiting(self, name: str | None) -> deque[Piece]:
        return self.queues.setdefault(name, deque())

    @rule(name=st.sampled_from("abc"), wanted=st.booleans(), lasts=st.sampled_from([1.0, math.inf]))
    def offer(self, name: str, wanted: bool, lasts: float) -> None:
        queue, frame = self.waiting(name), Piece(name, wanted, self.now + lasts)
        overtaken = self.schedule.offer(name, frame)
        if overtaken is not None and overtaken.is_wanted:
            assert overtaken is queue.pop()
        self.note(queue, frame)

    @rule(name=st.sampled_from("abc"), wanted=st.booleans())
    def queue(self, name: str, wanted: bool) -> None:
        frame = Piece(name, wanted)
        self.schedule.queue(name, frame)
        self.note(self.waiting(name), frame)

    def note(self, queue: deque[Piece], piece: Piece) -> None:
        """Only wanted work must come out again."""
        if piece.is_wanted:
            queue.append(piece)

    @rule(wanted=st.booleans())
    def push(self, wanted: bool) -> None:
        request, queue = Piece("request", wanted), self.waiting(None)
        if len(queue) >= self.LIMIT:
            with pytest.raises(Overloaded):
                self.schedule.push(request)
        else:
            self.schedule.push(request)
            self.note(queue, request)

    @rule()
    def retry(self) -> None:
        self.again.append(Piece("again"))
        self.schedule.retry(self.again[-1])

    @rule(name=st.sampled_from("abcd"))
    def withdraw(self, name: str) -> None:
        queue = self.waiting(name)
        frame = queue[0] if queue else Piece("unknown")
        assert self.schedule.withdraw(name, frame) is bool(queue)
        if queue:
            queue.popleft()

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(1, 4))
    def choose(self, limit: int) -> None:
        has_retries = bool(self.again)
        choice = self.schedule.choose(self.now, Batching(limit))
        assert ([work.name for work in choice.work] == ["again"]) == has_retries
        for work in choice.late:
            self.take(work)
            assert work.is_wanted
            assert work.expires <= self.now
        assert len(choice.work) <= limit
        assert len(choice.work) <= 1 or all(work.is_frame for work in choice.work)
        for work in choice.work:
            self.take(work)
            assert work.is_wanted
            assert work.expires > self.now
        if not choice.work:
            left = chain(self.again, *self.queues.values())
            assert not any(piece.is_wanted and piece.expires > self.now for piece in left)
        for name, queue in self.queues.items():
            served = any(work.name == (name or "request") for work in choice.work)
            self.passed[name] = 0 if served or not queue else self.passed[name] + 1
            assert self.passed[name] <= 4 + len(self.again) + self.retried
        self.retried += bool(choice.work and choice.work[0].name == "again")

    @rule()
    def drain(self) -> None:
        queues = [self.again, *self.queues.values()]
        assert Counter(self.schedule.drain()) == Counter(chain(*queues))
        assert len(self.schedule) == 0
        for queue in queues:
            queue.clear()

    retried = 0

    def take(self, work: Piece) -> None:
        """Check that the work was the first of its queue."""
        queue = self.again if work.name == "again" else self.waiting(None if work.name == "request" else str(work.name))
        assert queue.popleft() is work

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.schedule) >= sum(map(len, (self.again, *self.queues.values())))


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
