"""Time limits of jobs: whose turn it is, what is to be stopped, and what will not stop."""

from __future__ import annotations

import math

from edged.serving.turns import GRACE_SECONDS, Overdue, Turns


def test_a_jobs_time_begins_when_the_one_before_it_is_answered() -> None:
    turns = Turns()
    turns.open(1, 10)
    turns.give(1, 5, now=0)
    turns.give(1, 6, now=1)
    assert turns.overdue(10) == []
    assert not turns.end(1, 5, now=10)
    assert turns.overdue(20) == []
    assert turns.overdue(20.1) == [Overdue(1, 6)]


def test_a_job_is_stopped_once_and_its_host_is_given_up_after_the_grace() -> None:
    turns = Turns()
    turns.open(1, 10)
    turns.give(1, 5, now=0)
    assert turns.overdue(10.5) == [Overdue(1, 5)]
    assert turns.overdue(10.5 + GRACE_SECONDS) == []
    beyond = 10.6 + GRACE_SECONDS
    assert turns.overdue(beyond) == [Overdue(1, 5, is_hopeless=True)]
    assert turns.overdue(beyond) == [Overdue(1, 5, is_hopeless=True)]  # until somebody sees to it


def test_a_job_that_stopped_says_so_and_the_next_one_has_all_its_time() -> None:
    turns = Turns()
    turns.open(1, 10)
    turns.give(1, 5, now=0)
    turns.give(1, 6, now=0)
    turns.overdue(11)
    assert turns.end(1, 5, now=12)
    assert turns.overdue(22) == []
    assert not turns.end(1, 6, now=22)


def test_an_answer_out_of_turn_changes_no_turn() -> None:
    turns = Turns()
    turns.open(1, 10)
    turns.give(1, 5, now=0)
    turns.give(1, 6, now=0)  # it could not be prepared, which the other thread tells first
    assert not turns.end(1, 6, now=9)
    assert turns.overdue(11) == [Overdue(1, 5)]


def test_every_session_has_a_limit_of_its_own() -> None:
    turns = Turns()
    assert turns.shortest == math.inf
    assert turns.late(1e9) == 0
    turns.open(1, 10)
    turns.open(2, 1)
    assert turns.shortest == 1
    turns.give(1, 5, now=0)
    turns.give(2, 6, now=0)
    assert turns.busy == {1, 2}
    assert turns.overdue(2) == [Overdue(2, 6)]
    assert turns.late(4) == 3
    turns.close(2)
    assert turns.busy == {1}
    assert not turns.end(2, 6, now=3)  # of a session that is gone
