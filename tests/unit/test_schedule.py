"""Whose turn it is: newest frame of a camera, requests in order, everyone in turn, and nothing lost."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edged.errors import Overloaded
from edged.serving.schedule import Schedule


class Piece:
    """Work that knows its name and whether anyone waits for it."""

    def __init__(self, name: object, wanted: bool = True) -> None:
        self.name, self.is_wanted = name, wanted

    def __repr__(self) -> str:
        return f"{self.name}{'' if self.is_wanted else ' (unwanted)'}"


def chosen(schedule: Schedule[Piece]) -> list[object]:
    return [work.name for work in iter(schedule.choose, None)]


def test_the_newest_frame_of_a_camera_overtakes_the_one_that_waits() -> None:
    schedule = Schedule[Piece](4)
    first, second = Piece(1), Piece(2)
    assert schedule.offer("a", first) is None
    assert schedule.offer("a", second) is first
    assert len(schedule) == 1
    assert chosen(schedule) == [2]
    assert schedule.choose() is None


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
        work = schedule.choose()
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


def test_a_withdrawn_frame_is_given_back_and_its_lane_starts_anew() -> None:
    schedule = Schedule[Piece](4)
    frame = Piece("old")
    schedule.offer("a", frame)
    schedule.offer("b", Piece("b"))
    assert schedule.withdraw("a") is frame
    assert schedule.withdraw("a") is None
    assert schedule.withdraw("nobody") is None
    schedule.offer("a", Piece("new"))
    assert chosen(schedule) == ["b", "new"]


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
    """Any sequence of calls, against a model that is nothing but lists, and with everything accounted for."""

    LIMIT = 3

    @initialize()
    def begin(self) -> None:
        self.schedule = Schedule[Piece](self.LIMIT)
        self.lanes: deque[tuple[str, list[Piece]]] = deque()  # in the order of their turns
        self.again: list[Piece] = []
        self.put = self.out = 0

    def lane(self, name: str) -> list[Piece]:
        for key, pieces in self.lanes:
            if key == name:
                return pieces
        self.lanes.append((name, []))
        return self.lanes[-1][1]

    @rule(name=st.sampled_from("abc"), wanted=st.booleans())
    def offer(self, name: str, wanted: bool) -> None:
        pieces, frame = self.lane(name), Piece(self.put, wanted)
        overtaken = self.schedule.offer(name, frame)
        assert [overtaken] == (pieces or [None])
        self.out += overtaken is not None
        pieces[:] = [frame]
        self.put += 1

    @rule(wanted=st.booleans())
    def push(self, wanted: bool) -> None:
        request = Piece(self.put, wanted)
        if self.waiting() >= self.LIMIT:
            self.forget_unwanted()
        if self.waiting() >= self.LIMIT:
            with pytest.raises(Overloaded):
                self.schedule.push(request)
        else:
            self.schedule.push(request)
            self.lane("").append(request)
            self.put += 1

    def waiting(self) -> int:
        return sum(len(pieces) for key, pieces in self.lanes if key == "")

    def forget_unwanted(self) -> None:
        """What a full lane does first."""
        before = self.waiting()
        for entry in [entry for entry in self.lanes if entry[0] == ""]:
            entry[1][:] = [piece for piece in entry[1] if piece.is_wanted]
            if not entry[1]:
                self.lanes.remove(entry)
        self.out += before - self.waiting()

    @rule()
    def retry(self) -> None:
        self.again.append(Piece(self.put))
        self.schedule.retry(self.again[-1])
        self.put += 1

    @rule(name=st.sampled_from("abcd"))
    def withdraw(self, name: str) -> None:
        taken = self.schedule.withdraw(name)
        known = [entry for entry in self.lanes if entry[0] == name]
        assert ([taken] if taken else []) == [piece for _, pieces in known for piece in pieces]
        for entry in known:
            self.lanes.remove(entry)
            self.out += 1

    @rule()
    def choose(self) -> None:
        expected = None
        while expected is None and (self.again or self.lanes):
            if self.again:
                piece = self.again.pop(0)
            else:
                key, pieces = self.lanes.popleft()
                piece = pieces.pop(0)
                if pieces:
                    self.lanes.append((key, pieces))
            self.out += 1
            expected = piece if piece.is_wanted else None
        assert self.schedule.choose() is expected

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.schedule) == self.put - self.out


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
