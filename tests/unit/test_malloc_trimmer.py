"""The malloc trimmer returns memory to the system after growth, a limited number of times."""

from __future__ import annotations

from edged.daemon.malloc_trimmer import MallocTrimmer

_MB = 1 << 20


def test_trimmer_after_growth_trims_a_few_times() -> None:
    trimmer = MallocTrimmer(100 * _MB)
    assert not trimmer.is_worth(110 * _MB)
    assert trimmer.is_worth(140 * _MB)
    trimmer.trimmed(135 * _MB)  # most of the memory is in use
    assert [trimmer.is_worth(140 * _MB) for _ in range(5)] == [True, True, True, False, False]
    assert trimmer.is_worth(170 * _MB)


def test_trimmer_measures_growth_from_the_lowest_size() -> None:
    trimmer = MallocTrimmer(300 * _MB)
    assert not trimmer.is_worth(100 * _MB)
    assert trimmer.is_worth(140 * _MB)
