"""When memory is given back: after growth, not for ever anew."""

from __future__ import annotations

from edged.daemon.malloc_trimmer import Slack

_MB = 1 << 20


def test_what_grew_is_given_back_and_looked_at_some_more_times() -> None:
    slack = Slack(100 * _MB)
    assert not slack.is_worth(120 * _MB)
    assert slack.is_worth(140 * _MB)
    slack.given_back(135 * _MB)  # in use, most of it
    assert [slack.is_worth(140 * _MB) for _ in range(5)] == [True, True, True, False, False]
    assert slack.is_worth(170 * _MB)


def test_what_fell_by_itself_counts_from_there() -> None:
    slack = Slack(300 * _MB)
    assert not slack.is_worth(100 * _MB)
    assert slack.is_worth(140 * _MB)
