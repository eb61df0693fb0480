"""Every model of the zoo: the good ones, then the bad ones in the order of the stages that refuse them."""

from __future__ import annotations

from tests.zoo import (
    bad_answers,
    bad_appetites,
    bad_external,
    bad_files,
    bad_graphs,
    bad_nodes,
    bad_types,
    good_graphs,
    good_names,
    good_types,
    versions,
)
from tests.zoo.exhibit import Exhibit
from tests.zoo.runtime import Reach


def exhibits(reach: Reach) -> tuple[Exhibit, ...]:
    """Return all exhibits, with the outcomes expected for a runtime of this reach. Names are unique."""
    good = (good_types.HALL, good_graphs.HALL, good_names.HALL)
    bad = (bad_files.HALL, bad_graphs.HALL, bad_types.HALL, versions.hall(reach), versions.FIXED, bad_nodes.HALL)
    late = (bad_external.HALL, bad_appetites.HALL, bad_answers.HALL)
    found = tuple(exhibit for hall in (*good, *bad, *late) for exhibit in hall.exhibits)
    names = [exhibit.name for exhibit in found]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    return found
