"""The arithmetic of the benchmark table."""

from __future__ import annotations

from tests.bench.table import Skipped, as_json, compare, in_rounds, markdown


def test_in_rounds_of_two_candidates_warms_up_and_alternates_order() -> None:
    calls: list[str] = []

    def way(name: str) -> dict[str, float]:
        calls.append(name)
        return {"n": len(calls)}

    measured = in_rounds({"a": lambda: way("a"), "b": lambda: way("b")}, 2)

    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert measured == {"a": [{"n": 3}, {"n": 6}], "b": [{"n": 4}, {"n": 5}]}


def test_compare_several_references_has_best_and_median_of_round_ratios() -> None:
    measured = {
        "edged": [{"r": 10.0}, {"r": 30.0}, {"r": 80.0}],
        "slow": [{"r": 1.0}, {"r": 2.0}, {"r": 3.0}],
        "fast": [{"r": 20.0}, {"r": 40.0}, {"r": 80.0}],
    }

    line = compare("row", measured, "edged", ["slow", "fast"], "r", 0.8)
    low = compare("row", measured, "edged", ["slow", "fast"], "r", 9.0, more=False)

    assert (line.against, line.ratio, line.low, line.high, line.rounds) == ("fast", 0.75, 0.5, 1.0, 3)
    assert not line.met
    assert (low.against, low.ratio) == ("slow", 15.0)
    assert not low.met


def test_table_skipped_row_keeps_reason_in_both_forms() -> None:
    line = compare("row", {"edged": [{"r": 2.0}], "bare": [{"r": 1.0}]}, "edged", ["bare"], "r", 1.0)
    skipped = Skipped("other", "no such program")

    text, data = markdown({"machine": "m"}, [line, skipped]), as_json({"machine": "m"}, [line, skipped])

    assert "no such program" in text
    assert "2.000 (2.000 to 2.000, 1)" in text
    assert data["skipped"] == [{"row": "other", "reason": "no such program"}]
    assert [each["met"] for each in data["lines"]] == [True]  # type: ignore[attr-defined]
