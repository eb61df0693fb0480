"""Loads model families from other packages, and recognises the family of a model.

A family prepares the inputs and decodes the outputs of its models. Runs in a child, because the code of a family may
hang or crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from edged.errors import EdgedError, FamilyFailed
from edged.family_packages import Offer
from edged.ipc import job_messages as jobs
from edged.vision.families.third_party import ThirdParty
from edged.vision.family import recognise as recognise_with

Report: TypeAlias = Callable[[jobs.Progress], None]


def recognise(job: jobs.Recognise, report: Report) -> jobs.Recognised:
    """Find the family of a model. If the setting `family` is set and a family fails, raise the error of this family.
    Without the setting, return the errors of failed families in `problems`, because another family may be right."""
    is_set = "family" in job.settings
    usable, problems = list[ThirdParty](), list[str]()
    for _, found in _loaded(job.families, report):
        if isinstance(found, ThirdParty):
            usable.append(found)
        elif is_set:
            raise found
        else:
            problems.append(str(found))
    about = job.signature.inputs, job.signature.outputs, job.metadata, job.settings, job.operators, job.heads
    report(jobs.Progress("recognising"))
    while True:
        try:
            return jobs.Recognised(recognise_with(*about, usable), tuple(problems))
        except FamilyFailed as error:
            if is_set:
                raise
            problems.append(str(error))
            usable = [other for other in usable if other.name != error.family]


def load(job: jobs.LoadFamilies, report: Report) -> jobs.LoadedFamilies:
    """Load families. Return for each family why it cannot be used; the text is empty if it can be used."""
    found = [each for _, each in _loaded(job.families, report)]
    return jobs.LoadedFamilies(tuple("" if isinstance(each, ThirdParty) else str(each) for each in found))


def _loaded(offers: Sequence[Offer], report: Report) -> Iterator[tuple[Offer, ThirdParty | EdgedError]]:
    """Load the family of each `Offer`. Yield the offer with the family, or with the error that prevents loading. The
    reported progress names the family, because loading may hang."""
    for offer in offers:
        report(jobs.Progress(jobs.loading(offer.family)))
        try:
            yield offer, ThirdParty.load(offer.family, offer.package)
        except EdgedError as error:
            yield offer, error
