"""Waves of a rollout, and the rules that end it."""

from __future__ import annotations

import pytest

from edged.cli.rollout.plan import Figures, Rules, parse_rules, unknown, waves
from edged.errors import InvalidInput


@pytest.mark.parametrize(
    ("count", "canary", "then", "sizes"),
    [
        (1, 1, "25%", [1]),
        (8, 1, "25%", [1, 2, 2, 2, 1]),
        (8, 2, "3", [2, 3, 3]),
        (8, 2, "100%", [2, 6]),
        (3, 10, "1", [3]),
        (100, 2, "25%", [2, 25, 25, 25, 23]),
        (5, 1, "1%", [1, 1, 1, 1, 1]),
    ],
)
def test_waves_have_each_box_once(count: int, canary: int, then: str, sizes: list[int]) -> None:
    boxes = [f"box{number}" for number in range(count)]
    found = waves(boxes, canary, then)
    assert [len(wave) for wave in found] == sizes
    assert [box for wave in found for box in wave] == boxes


@pytest.mark.parametrize("then", ["", "0", "0%", "101%", "-1", "a", "1.5", "25 %", "99999999"])
def test_step_that_is_no_number_of_boxes_is_refused(then: str) -> None:
    with pytest.raises(InvalidInput, match="--then"):
        waves(["a", "b"], 1, then)


def test_rollout_without_boxes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no box"):
        waves([], 1, "25%")


def test_rules_are_parsed() -> None:
    assert parse_rules("alarms or p99 > 1.5x") == Rules(alarms=True, factors={"p99": 1.5})
    assert parse_rules("failures, infer>2x") == Rules(failures=True, factors={"infer": 2.0})
    assert parse_rules("") == Rules()


@pytest.mark.parametrize(
    "text", ["p99", "p99 > 0.5x", "p99 > x", "p50 > 2x", "alarm", "alarms and failures", "p99 < 2x"]
)
def test_rule_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a rule"):
        parse_rules(text)


SLOW = {"slow doors ": "slow: it takes 8.2 ms"}
BEFORE = Figures("k", "openvino", 10.0, 50.0, 3, SLOW)


@pytest.mark.parametrize(
    ("rules", "after", "broken"),
    [
        ("alarms", Figures(alarms={"slow doors ": "slow: it takes 8.3 ms"}), ""),
        ("alarms", Figures(alarms={**SLOW, "unserved doors ": "unserved: x"}), "a new alarm: unserved: x"),
        ("failures", Figures(failed=3), ""),
        ("failures", Figures(failed=5), "2 requests failed"),
        ("failures", Figures(failed=0), ""),  # a model that is replaced counts from 0 again
        ("failures", Figures(failed=2), "2 requests failed"),
        ("p99 > 1.5x", Figures(p99_ms=75.0), ""),
        ("p99 > 1.5x", Figures(p99_ms=76.0), "p99 is 76 ms, more than 1.5 times the 50 ms before the change"),
        ("p99 > 1.5x", Figures(p99_ms=None), ""),
        ("infer > 2x", Figures(infer_ms=21.0), "infer is 21 ms, more than 2 times the 10 ms before the change"),
        ("", Figures(alarms={"unserved doors ": "unserved: x"}, failed=9, p99_ms=1e9), ""),
    ],
)
def test_rules_compare_figures(rules: str, after: Figures, broken: str) -> None:
    assert parse_rules(rules).broken(BEFORE, after) == broken


def test_rule_whose_figure_is_unknown_is_told() -> None:
    (line,) = unknown(parse_rules("p99 > 2x or alarms"), {"a": BEFORE, "b": Figures(), "c": Figures()})
    assert line == "p99 is unknown on b, c: no camera sends frames; the rule for p99 is not applied to these boxes"
