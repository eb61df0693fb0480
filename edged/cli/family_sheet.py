"""`edged inspect --draw PICTURE --try-all`: runs a model with each family that accepts it, and shows the findings as
table rows and as one picture."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edged.cli.common import refused_by_system
from edged.errors import InvalidInput
from edged.ipc.job_messages import TriedFamily

if TYPE_CHECKING:
    from edged.cli.local import LocalBox
    from edged.engines.admission import Admission

_SUFFIXES = (".jpg", ".jpeg")


class FamilySheet(msgspec.Struct, frozen=True):
    """The findings of each family that accepts a model, in one picture. `families` has the settings and the findings of
    each family, the likeliest first. `drawn` is the picture file with a tile for each family. If no family accepts the
    model with the given settings, `drawn` is empty and `why` is the reason."""

    families: tuple[tuple[dict[str, str], TriedFamily], ...]
    drawn: str
    why: str = ""

    def rows(self) -> dict[str, str]:
        """Return a table row for each family: its settings as they are given to --set, and what it finds. The last row
        is the picture file. Without families, the only row is the reason."""
        if not self.families:
            return {"tried": self.why}
        return {_flags(settings): tried.line for settings, tried in self.families} | {"drawn": self.drawn}

    def facts(self) -> dict[str, Any]:
        """Return the results for --json."""
        families = [{"settings": settings, **msgspec.structs.asdict(tried)} for settings, tried in self.families]
        return {"tried": {"drawn": self.drawn, "families": families}}


def check(draw: Path | None, given: Mapping[str, str]) -> None:
    """Raise InvalidInput if other options contradict `--try-all`; `given` are the settings on the command line."""
    if draw is None:
        raise InvalidInput("--try-all needs --draw PICTURE")
    if "family" in given:
        raise InvalidInput("--try-all cannot be used with --set family; leave out --set family")


def default_place(picture: Path, model: Path, out: Path | None) -> Path:
    """Return the path of the picture with a tile for each family, by default in the current folder. Raises InvalidInput
    if the path does not end in .jpg or .jpeg."""
    place = out or Path(f"{picture.stem}.{model.stem}.families.jpg")
    if place.suffix.lower() not in _SUFFIXES:
        raise InvalidInput(
            f"--out {place.name!r} is not the name of a JPEG; with --try-all, give a name that ends in .jpg"
        )
    return place


def try_all(
    box: LocalBox, file: Path, settings: Mapping[str, str], admission: Admission, picture: Path, place: Path
) -> FamilySheet:
    """Run an examined model on a picture with every family that accepts it. Write a JPEG with a tile for each family to
    `place`.

    Raises the errors of `LocalBox.try_families`, and InvalidInput if `place` cannot be written.
    """
    compared = box.try_families(file, settings, admission, picture)
    if not compared.families:
        recognition = None if admission.model is None else admission.model.recognition
        why = "the model returns raw tensors"
        if recognition is not None:
            feed, reason = recognition.picture, recognition.reason
            why = reason if recognition.preprocess is not None or feed in reason else f"{feed}; {reason}"
        return FamilySheet((), "", f"no family can be tried: {why}")
    try:
        place.write_bytes(compared.picture)
    except OSError as error:
        raise InvalidInput(refused_by_system(error, place)) from error
    return FamilySheet(compared.families, str(place))


def _flags(settings: Mapping[str, str]) -> str:
    return shlex.join(f"{key}={value}" for key, value in settings.items())
