"""Which of a model's versions are served: the setting `versions`, or version_policy in its config.pbtxt. Pure.

    versions = "latest:2"     the two highest numbers; "latest" is one, which is what holds where nothing is said
    versions = "all"
    versions = "1,3"          these, as far as they are there

The highest of them answers whoever names no version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from edged.errors import ConfigError

VERSIONS = "versions"
_LATEST = re.compile(r"latest(?::\s*([0-9]{1,9}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_MOST = 64  # named ones


class VersionPolicy(msgspec.Struct, frozen=True):
    """The `latest` highest numbers, 0 for all of them; or those that are `named`, whatever else there is."""

    latest: int = 1
    named: tuple[int, ...] = ()

    def choose(self, present: Iterable[int]) -> tuple[int, ...]:
        """Those of the numbers that are served, the highest first."""
        numbers = sorted(set(present), reverse=True)
        if self.named:
            return tuple(number for number in numbers if number in self.named)
        return tuple(numbers[: self.latest] if self.latest else numbers)

    def __str__(self) -> str:
        """As the setting is written."""
        if self.named:
            return ",".join(map(str, self.named))
        return f"latest:{self.latest}" if self.latest else "all"


def setting(settings: Mapping[str, str]) -> VersionPolicy | None:
    """What the settings say; None where they say nothing. ConfigError for what is no policy."""
    text = settings.get(VERSIONS)
    return None if text is None else parse(text)


def parse(text: str) -> VersionPolicy:
    """The policy of a setting; ConfigError, in one line, for anything else."""
    word = text.strip()
    if word == "all":
        return VersionPolicy(latest=0)
    latest = _LATEST.fullmatch(word)
    if latest and int(latest[1] or "1") > 0:
        return VersionPolicy(latest=int(latest[1] or "1"))
    numbers = [number.strip() for number in word.split(",")]
    if len(numbers) <= _MOST and all(map(_NUMBER.fullmatch, numbers)):
        return VersionPolicy(named=tuple(sorted({int(number) for number in numbers})))
    raise ConfigError(f'setting {VERSIONS}={text[:40]!r}: write "latest:2", "all", or numbers such as "1,3"')
