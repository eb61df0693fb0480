"""Whose turn it is: newest frame of a camera, requests in order, everyone in turn, and nothing lost."""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.errors import Overloaded
from edged.serving.schedule import Batching, Schedule, Share


class Piece:
    """Work that knows its name and whether anyone waits for it. Names of requests begin with an r."""

    def __init__(
        self, name: object, wanted: bool = True, expires: float = math.inf, received: float = 0.0, frame: bool = True
    ) -> None:
        self.name, self.is_wanted, self.expires, self.received = name, wanted, expires, received
        self.is_frame = frame and not str(name).startswith("r")
        self.group, self.rows = ("frames" if self.is_frame else None), 1

    def __repr__(self) -> str:
        return f"{self.name}{'' if self.is_wanted else ' (unwanted)'}"


def next_of(schedule: Schedule[Piece], now: float = 0.0) -> Piece | None:
    work = schedule.choose(now).work
    assert len(work) <= 1
    return work[0] if work else None


def chosen(schedule: Schedule[Piece]) -> list[object]:
    return [work.name for work in iter(lambda: next_of(schedule), None)]


def test_the_newest_frame_of_a_camera_overtakes_the_one_that_waits() -> None:
    schedule = Schedule[Piece](4)
    first, second = Piece(1), Piece(2)
    assert schedule.offer("a", first) is None
    assert schedule.offer("a", second) is first
    assert len(schedule) == 1
    assert chosen(schedule) == [2]
    assert next_of(schedule) is None


def test_a_fast_camera_does_not_move_ahead_of_others_by_overtaking_itself() -> None:
    schedule = Schedule[Piece](4)
    for lane, name in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3")):
        schedule.offer(lane, Piece(name))
    assert chosen(schedule) == ["a3", "b1"]


def test_lanes_take_turns_however_fast_each_is() -> None:
    schedule = Schedule[Piece](64)
    for number in range(50):
        schedule.push(Piece(f"r{number}"))
    order = []
    for number in range(30):
        schedule.offer("fast", Piece("fast"))
        if number % 3 == 0:
            schedule.offer("slow", Piece("slow"))
        work = next_of(schedule)
        assert work is not None
        order.append(str(work.name)[0])
    assert 10 <= order.count("f") <= 15
    assert order.count("s") >= 9
    assert order.count("r") >= 8


def test_a_camera_waits_for_at_most_one_turn_of_every_other_lane() -> None:
    schedule = Schedule[Piece](8)
    for number in range(8):
        schedule.push(Piece(f"r{number}"))
    for lane in "abc":
        schedule.offer(lane, Piece(lane))
    for _ in range(3):
        schedule.choose()
        schedule.offer("a", Piece("a"))
    assert chosen(schedule)[:2] == ["c", "r1"]


def test_requests_are_answered_in_the_order_they_came() -> None:
    schedule = Schedule[Piece](5)
    for number in range(5):
        schedule.push(Piece(number))
    assert chosen(schedule) == [0, 1, 2, 3, 4]


def test_requests_beyond_the_limit_are_refused_and_frames_are_not() -> None:
    schedule = Schedule[Piece](2)
    schedule.push(Piece(1))
    schedule.push(Piece(2))
    with pytest.raises(Overloaded, match="2 requests"):
        schedule.push(Piece(3))
    for lane in range(10):
        schedule.offer(lane, Piece("frame"))
    assert len(schedule) == 12
    assert chosen(schedule).count("frame") == 10
    schedule.push(Piece(4))


def test_requests_whose_callers_have_gone_do_not_take_the_places_of_others() -> None:
    schedule = Schedule[Piece](2)
    for _ in range(2):
        schedule.push(Piece("gone", wanted=False))
    schedule.push(Piece("here"))
    assert chosen(schedule) == ["here"]


def test_work_whose_caller_has_gone_is_dropped_when_its_turn_comes() -> None:
    schedule = Schedule[Piece](4)
    gone = Piece("request")
    schedule.push(gone)
    schedule.offer("a", Piece("frame", wanted=False))
    schedule.retry(Piece("again", wanted=False))
    schedule.push(Piece("wanted"))
    gone.is_wanted = False
    assert chosen(schedule) == ["wanted"]
    assert len(schedule) == 0


def test_work_that_was_lost_with_its_host_goes_first() -> None:
    schedule = Schedule[Piece](4)
    schedule.offer("a", Piece("frame"))
    schedule.push(Piece("request"))
    schedule.retry(Piece("again 1"))
    schedule.retry(Piece("again 2"))
    assert chosen(schedule) == ["again 1", "again 2", "frame", "request"]


def test_a_withdrawn_frame_is_given_back_and_no_other_is() -> None:
    schedule = Schedule[Piece](4)
    frame = Piece("old")
    schedule.offer("a", frame)
    schedule.offer("b", Piece("b"))
    assert not schedule.withdraw("a", Piece("another"))
    assert schedule.withdraw("a", frame)
    assert not schedule.withdraw("a", frame)
    assert not schedule.withdraw("nobody", frame)
    schedule.offer("a", Piece("new"))
    assert chosen(schedule) == ["b", "new"]


def test_frames_that_are_queued_are_chosen_in_their_order_and_take_turns_with_others() -> None:
    schedule = Schedule[Piece](4)
    for number in range(3):
        schedule.queue("a", Piece(f"a{number}"))
    schedule.offer("b", Piece("b"))
    assert chosen(schedule) == ["a0", "b", "a1", "a2"]


def test_work_that_is_too_late_is_given_back_and_costs_no_turn() -> None:
    schedule = Schedule[Piece](4)
    late, gone = Piece("late", expires=5.0), Piece("gone", wanted=False, expires=5.0)
    schedule.queue("a", late)
    schedule.queue("a", Piece("a", expires=20.0))
    schedule.offer("b", gone)
    schedule.push(Piece("r", expires=10.0))
    choice = schedule.choose(10.0)
    assert [work.name for work in choice.work] == ["a"]
    assert choice.late == (late,)
    assert [work.name for work in schedule.choose(10.0).late] == ["r"]
    assert len(schedule) == 0


# -- shares -----------------------------------------------------------------------------------------------------------


def served(schedule: Schedule[Piece], lanes: dict[str, Share], turns: int) -> Counter[str]:
    """Whom the engine serves while every lane always has a frame."""
    counts: Counter[str] = Counter()
    for name, share in lanes.items():
        schedule.offer(name, Piece(name), share)
    for _ in range(turns):
        work = next_of(schedule)
        assert work is not None
        counts[str(work.name)] += 1
        schedule.offer(str(work.name), Piece(work.name), lanes[str(work.name)])
    return counts


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=12))
def test_lanes_get_the_engine_in_proportion_to_their_weights(weights: list[float]) -> None:
    lanes = {f"lane {index}": Share(weight) for index, weight in enumerate(weights)}
    turns = round(40 * sum(weights) / min(weights))
    counts = served(Schedule[Piece](4), lanes, turns)
    for name, share in lanes.items():
        due = turns * share.weight / sum(weights)
        assert abs(counts[name] - due) <= 1 + 0.01 * due


def test_a_higher_priority_goes_first_as_long_as_it_has_work() -> None:
    schedule = Schedule[Piece](4)
    lanes = {"door": Share(priority=1), "yard": Share(weight=100.0), "street": Share()}
    assert served(schedule, lanes, 50) == {"door": 50}
    assert [next_of(schedule).name for _ in range(2)] == ["door", "yard"]  # type: ignore[union-attr]


def test_a_lane_that_was_idle_has_no_claim_to_what_it_did_not_use() -> None:
    schedule = Schedule[Piece](4)
    busy = served(schedule, {"a": Share(), "b": Share()}, 1000)
    assert busy["a"] == busy["b"] == 500
    counts = served(schedule, {"a": Share(), "b": Share(), "late": Share()}, 300)
    assert all(99 <= counts[name] <= 101 for name in ("a", "b", "late"))


def test_a_lane_that_leaves_and_comes_back_gains_nothing() -> None:
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


def test_a_lane_that_comes_down_from_a_higher_priority_has_no_claim_to_what_the_others_had() -> None:
    schedule, low = Schedule[Piece](4), Share()
    served(schedule, {"a": low, "b": low}, 1000)
    for _ in range(20):
        schedule.queue("sly", Piece("sly"), Share(priority=5))
    schedule.queue("sly", Piece("sly"), low)
    for name in "ab" * 20:
        schedule.queue(name, Piece(name), low)
    assert 9 <= chosen(schedule)[:30].count("sly") <= 11


def test_a_lane_that_rises_is_not_held_back_by_what_it_had_below() -> None:
    schedule, high = Schedule[Piece](4), Share(priority=5)
    served(schedule, {"risen": Share()}, 1000)
    served(schedule, {"old": high}, 10)
    counts = served(schedule, {"risen": high, "old": high}, 100)
    assert abs(counts["risen"] - counts["old"]) <= 2, counts


def test_lanes_that_are_gone_are_forgotten() -> None:
    schedule = Schedule[Piece](4)
    for number in range(5000):
        schedule.offer(number, Piece(number), Share(weight=0.01))
        assert next_of(schedule) is not None
    assert len(schedule._idle) <= 1024


# -- batches ----------------------------------------------------------------------------------------------------------


def batch(schedule: Schedule[Piece], batching: Batching, now: float = 0.0) -> list[object]:
    return [work.name for work in schedule.choose(now, batching).work]


def test_frames_of_several_cameras_go_together_in_the_order_of_their_turns() -> None:
    schedule = Schedule[Piece](4)
    for lane in "abcde":
        schedule.offer(lane, Piece(lane))
    assert batch(schedule, Batching(3)) == ["a", "b", "c"]
    schedule.offer("a", Piece("a"))
    assert batch(schedule, Batching(3)) == ["d", "e", "a"]
    assert batch(schedule, Batching(3)) == []


def test_requests_go_alone_and_keep_their_turn() -> None:
    schedule = Schedule[Piece](4)
    schedule.offer("a", Piece("a"))
    schedule.push(Piece("r1"))
    schedule.offer("b", Piece("b"))
    assert batch(schedule, Batching(8)) == ["a", "b"]
    assert batch(schedule, Batching(8)) == ["r1"]


def test_what_was_lost_with_its_host_goes_alone() -> None:
    schedule = Schedule[Piece](4)
    schedule.offer("a", Piece("a"))
    schedule.offer("b", Piece("b"))
    schedule.retry(Piece("again"))
    assert batch(schedule, Batching(8)) == ["again"]
    assert batch(schedule, Batching(8)) == ["a", "b"]


def test_a_frame_waits_for_others_only_so_long() -> None:
    schedule, patient = Schedule[Piece](4), Batching(2, wait=0.5)
    schedule.offer("a", Piece("a", received=10.0))
    choice = schedule.choose(10.1, patient)
    assert (choice.work, choice.again_at) == ((), 10.5)
    assert batch(schedule, patient, now=10.5) == ["a"]
    schedule.offer("a", Piece("a", received=11.0))
    schedule.offer("b", Piece("b", received=11.1))
    assert batch(schedule, patient, now=11.1) == ["b", "a"]


def test_a_request_does_not_wait_while_frames_wait_for_each_other() -> None:
    schedule, patient = Schedule[Piece](4), Batching(2, wait=0.5)
    schedule.offer("a", Piece("a", received=10.0))
    schedule.push(Piece("r1"))
    assert batch(schedule, patient, now=10.1) == ["r1"]
    assert schedule.choose(10.1, patient).again_at == 10.5
    assert batch(schedule, patient, now=10.5) == ["a"]


def test_a_frame_does_not_wait_for_others_until_it_is_too_late() -> None:
    schedule, patient = Schedule[Piece](4), Batching(2, wait=0.5)
    schedule.offer("a", Piece("a", received=10.0, expires=10.4))
    assert batch(schedule, patient, now=10.0) == ["a"]


def test_weights_hold_for_batches_too() -> None:
    schedule, counts = Schedule[Piece](4), Counter[str]()
    lanes = {"heavy": Share(3.0), "light": Share(1.0), "other": Share(1.0)}
    for name, share in lanes.items():
        for number in range(600):
            schedule.queue(name, Piece(f"{name} {number}"), share)
    for _ in range(100):
        work = schedule.choose(0.0, Batching(5)).work
        assert len(work) == 5
        counts.update(str(each.name).split()[0] for each in work)
    assert abs(counts["heavy"] - 300) <= 3


def test_draining_empties_it_and_it_can_be_used_again() -> None:
    schedule = Schedule[Piece](1)
    schedule.push(Piece("request"))
    schedule.offer("a", Piece("frame"))
    schedule.retry(Piece("again"))
    assert {work.name for work in schedule.drain()} == {"request", "frame", "again"}
    assert len(schedule) == 0
    schedule.push(Piece("next"))
    assert chosen(schedule) == ["next"]


class Turns(RuleBasedStateMachine):
    """Any sequence of calls: everything is accounted for, in order, and nobody waits for ever."""

    LIMIT = 3

    @initialize()
    def begin(self) -> None:
        self.schedule = Schedule[Piece](self.LIMIT)
        self.lanes: dict[str | None, deque[Piece]] = {}
        self.again: deque[Piece] = deque()
        self.now = 0.0
        self.passed: Counter[str | None] = Counter()  # how often others were served while a lane waited

    def lane(self, name: str | None) -> deque[Piece]:
        return self.lanes.setdefault(name, deque())

    @rule(name=st.sampled_from("abc"), wanted=st.booleans(), lasts=st.sampled_from([1.0, math.inf]))
    def offer(self, name: str, wanted: bool, lasts: float) -> None:
        lane, frame = self.lane(name), Piece(name, wanted, self.now + lasts)
        overtaken = self.schedule.offer(name, frame)
        if overtaken is not None and overtaken.is_wanted:
            assert overtaken is lane.pop()
        self.note(lane, frame)

    @rule(name=st.sampled_from("abc"), wanted=st.booleans())
    def queue(self, name: str, wanted: bool) -> None:
        frame = Piece(name, wanted)
        self.schedule.queue(name, frame)
        self.note(self.lane(name), frame)

    def note(self, lane: deque[Piece], piece: Piece) -> None:
        """Only what somebody wants has to come out again."""
        if piece.is_wanted:
            lane.append(piece)

    @rule(wanted=st.booleans())
    def push(self, wanted: bool) -> None:
        request, lane = Piece("request", wanted), self.lane(None)
        if len(lane) >= self.LIMIT:
            with pytest.raises(Overloaded):
                self.schedule.push(request)
        else:
            self.schedule.push(request)
            self.note(lane, request)

    @rule()
    def retry(self) -> None:
        self.again.append(Piece("again"))
        self.schedule.retry(self.again[-1])

    @rule(name=st.sampled_from("abcd"))
    def withdraw(self, name: str) -> None:
        lane = self.lane(name)
        frame = lane[0] if lane else Piece("unknown")
        assert self.schedule.withdraw(name, frame) is bool(lane)
        if lane:
            lane.popleft()

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(1, 4))
    def choose(self, limit: int) -> None:
        choice = self.schedule.choose(self.now, Batching(limit))
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
            left = chain(self.again, *self.lanes.values())
            assert not any(piece.is_wanted and piece.expires > self.now for piece in left)
        for name, lane in self.lanes.items():
            served = any(work.name == (name or "request") for work in choice.work)
            self.passed[name] = 0 if served or not lane else self.passed[name] + 1
            assert self.passed[name] <= 4 + len(self.again) + self.retried
        self.retried += bool(choice.work and choice.work[0].name == "again")

    retried = 0

    def take(self, work: Piece) -> None:
        """It was the first of its lane."""
        lane = self.again if work.name == "again" else self.lane(None if work.name == "request" else str(work.name))
        assert lane.popleft() is work

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.schedule) >= sum(map(len, (self.again, *self.lanes.values())))


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
