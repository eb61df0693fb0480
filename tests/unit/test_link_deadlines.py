"""Time limits of jobs: whose turn it is, what is to be stopped, and what will not stop."""

from __future__ import annotations

import math

from edged.serving.link import JobDeadlines, LinkTimes, OverdueJob


def test_a_jobs_time_begins_when_the_one_before_it_is_answered() -> None:
    deadlines = JobDeadlines()
    deadlines.open(1, 10)
    deadlines.give(1, 5, now=0)
    deadlines.give(1, 6, now=1)
    assert deadlines.overdue(10) == []
    assert not deadlines.end(1, 5, now=10)
    assert deadlines.overdue(20) == []
    assert deadlines.overdue(20.1) == [OverdueJob(1, 6)]


def test_a_job_is_stopped_once_and_its_host_is_given_up_after_the_grace() -> None:
    deadlines = JobDeadlines()
    deadlines.open(1, 10)
    deadlines.give(1, 5, now=0)
    assert deadlines.overdue(10.5) == [OverdueJob(1, 5)]
    assert deadlines.overdue(10.5 + LinkTimes().grace) == []
    beyond = 10.6 + LinkTimes().grace
    assert deadlines.overdue(beyond) == [OverdueJob(1, 5, is_hopeless=True)]
    assert deadlines.overdue(beyond) == [OverdueJob(1, 5, is_hopeless=True)]  # until somebody sees to it


def test_a_job_that_stopped_says_so_and_the_next_one_has_all_its_time() -> None:
    deadlines = JobDeadlines()
    deadlines.open(1, 10)
    deadlines.give(1, 5, now=0)
    deadlines.give(1, 6, now=0)
    deadlines.overdue(11)
    assert deadlines.end(1, 5, now=12)
    assert deadlines.overdue(22) == []
    assert not deadlines.end(1, 6, now=22)


def test_an_answer_out_of_turn_changes_no_turn() -> None:
    deadlines = JobDeadlines()
    deadlines.open(1, 10)
    deadlines.give(1, 5, now=0)
    deadlines.give(1, 6, now=0)  # it could not be prepared, which the other thread tells first
    assert not deadlines.end(1, 6, now=9)
    assert deadlines.overdue(11) == [OverdueJob(1, 5)]


def test_every_session_has_a_limit_of_its_own() -> None:
    deadlines = JobDeadlines()
    assert deadlines.shortest == math.inf
    assert deadlines.late(1e9) == 0
    deadlines.open(1, 10)
    deadlines.open(2, 1)
    assert deadlines.shortest == 1
    deadlines.give(1, 5, now=0)
    deadlines.give(2, 6, now=0)
    assert deadlines.busy == {1, 2}
    assert deadlines.overdue(2) == [OverdueJob(2, 6)]
    assert deadlines.late(4) == 3
    deadlines.close(2)
    assert deadlines.busy == {1}
    assert not deadlines.end(2, 6, now=3)  # of a session that is gone
