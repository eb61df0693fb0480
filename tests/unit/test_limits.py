"""The settings `limits.*` and `outputs.*`, and how much memory hosts get."""

from __future__ import annotations

import os

import pytest

from edged.errors import ConfigError
from edged.models import settings
from edged.models.limits import Bounds, bounds
from edged.serving import memory


def test_what_is_not_said_is_the_boxs() -> None:
    assert bounds("m", {}) == Bounds("m", 0.0, 0, "count")
    said = {"limits.seconds": "0.5", "limits.output_mb": "8", "outputs.finite": "refuse"}
    settings.validate(said)
    assert bounds("m", said) == Bounds("m", 0.5, 8, "refuse")
    assert bounds("m", {"outputs.finite": "ignore"}).finite == "ignore"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("limits.seconds", "0", "limits.seconds"),
        ("limits.seconds", "nan", "limits.seconds"),
        ("limits.seconds", "1e9", "limits.seconds"),
        ("limits.seconds", "soon", "limits.seconds"),
        ("limits.output_mb", "0", "limits.output_mb"),
        ("limits.output_mb", "-1", "limits.output_mb"),
        ("limits.output_mb", "1.5", "limits.output_mb"),
        ("outputs.finite", "reject", "refuse"),
        ("outputs.finit", "count", "did you mean outputs.finite"),
        ("limits.second", "1", "did you mean limits.seconds"),
        ("limits.", "1", "limits."),
    ],
)
def test_impossible_settings_are_refused_with_what_was_meant(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings.validate({key: value})


def test_hosts_leave_room_for_the_rest_of_the_box() -> None:
    assert memory.derived_mb(8192) == 8192 - 819
    assert memory.derived_mb(2048) == 2048 - 512
    assert memory.derived_mb(600) == 300
    assert memory.derived_mb(0) == 0
    assert memory.box_mb() > 0


def test_what_a_process_uses_is_its_own_memory() -> None:
    before = memory.used_mb(os.getpid())
    held = bytearray(os.urandom(1 << 20) * 64)
    assert memory.used_mb(os.getpid()) - before > 48
    del held
    assert memory.used_mb(2**22 + 1) == 0  # no process has such a number
