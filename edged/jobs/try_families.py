"""Runs the unoptimised model on one picture and decodes the outputs with several families: a user sees which is right.

The model is opened once. It runs once for each preprocessing, because families need different inputs. The inputs differ
in the order of the colours, in the scale of the values, and in how a picture is fitted into the input.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import islice
from pathlib import Path

from edged.backends import registry
from edged.backends.contract import Session, one_line
from edged.errors import EngineUnusable
from edged.ipc import job_messages as jobs
from edged.tensors import Array
from edged.verification.probes import Pictures, read_sample
from edged.vision.contact_sheet import Tile, contact_sheet, fit
from edged.vision.content import lines
from edged.vision.detections import Detections, class_name
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.family import Family, Recognition, open_family
from edged.vision.image import Image
from edged.vision.placement import place

_BEST = 3  # detections that are reported, or lines of a content
_LONGEST = 120  # characters of an error, or of a line of a content
_MOST_BYTES = 2 << 20  # of the JPEG, because it is part of a message
_QUALITIES = (85, 60, 30)


def try_families(job: jobs.TryFamilies) -> jobs.TriedFamilies:
    """Return what each family finds in the picture, and the contact sheet.

    If a family cannot decode the outputs, or if the runtime refuses the family's input, the result of this family is
    an error. Raises InvalidInput if the picture cannot be read, and EngineUnusable if the runtime can run only built
    engines, not the model itself.
    """
    pixels = read_sample(Path(job.picture))
    session = registry.load(job.order.recipe.backend).trial(job.order)
    if session is None:
        raise EngineUnusable(f"{job.order.recipe.backend} can run only built engines, not the model itself")
    small, found = fit(pixels), dict[int, tuple[jobs.TriedFamily, Image]]()
    for group in _by_feed(job.candidates):
        outputs: Mapping[str, Array] | str
        try:
            outputs = _run(session, job, group[0], pixels)
        except Exception as error:  # an error of the runtime becomes the result for this preprocessing
            outputs = _text(error)
        for number in group:
            found[number] = _tried(outputs, job.candidates[number], small)
    ordered = [found[number] for number in range(len(job.candidates))]
    tiles = [Tile(picture, title, tried.line) for title, (tried, picture) in zip(job.titles, ordered, strict=True)]
    return jobs.TriedFamilies(tuple(tried for tried, _ in ordered), _encode(contact_sheet(tiles)))


def _by_feed(candidates: tuple[Recognition, ...]) -> list[list[int]]:
    """Return the numbers of the candidates, in groups with the same preprocessing."""
    groups: dict[Hashable, list[int]] = {}
    for number, each in enumerate(candidates):
        reading, own = each.reading, type(open_family(each)).own_inputs
        groups.setdefault((each.preprocess, own, reading.extras, reading.constants), []).append(number)
    return list(groups.values())


def _run(session: Session, job: jobs.TryFamilies, number: int, pixels: Image) -> Mapping[str, Array]:
    probe = Pictures(job.order.signature, job.candidates[number]).of(Path(job.picture).name, pixels)
    return session.infer(probe.inputs)


def _tried(
    outputs: Mapping[str, Array] | str, recognition: Recognition, picture: Image
) -> tuple[jobs.TriedFamily, Image]:
    """Decode the outputs and draw the result on `picture`, which becomes a tile of the contact sheet. If the outputs
    cannot be decoded, return the error and `picture` as it is."""
    if isinstance(outputs, str):
        return jobs.TriedFamily(error=outputs), picture
    try:
        return _decoded(outputs, recognition, picture)
    except Exception as error:  # decoding outputs that fit by accident may raise any error, for example MemoryError
        return jobs.TriedFamily(error=_text(error)), picture


def _decoded(outputs: Mapping[str, Array], recognition: Recognition, picture: Image) -> tuple[jobs.TriedFamily, Image]:
    family, how, names = open_family(recognition), recognition.preprocess, recognition.names
    assert how is not None  # a recognised family has a preprocessing
    # The tile has the whole picture at another size, so its place in the model's input is the same, up to rounding.
    height, width = picture.shape[:2]
    placement = place(width, height, how.width, how.height, how.fit, how.zoom)
    if not isinstance(family, Family):
        content = family.content(outputs, 0, placement, recognition.thresholds)
        said = tuple(each.text[:_LONGEST] for each in islice(lines(content, names), _BEST))
        return jobs.TriedFamily(None, said), annotate(picture, Detections.empty(), names, content=content)
    boxes = family.decode(outputs, 0, placement, recognition.thresholds)
    return jobs.TriedFamily(len(boxes), _best(boxes, names)), annotate(picture, boxes, names)


def _best(found: Detections, names: tuple[str, ...]) -> tuple[str, ...]:
    pairs = zip(found.class_ids[:_BEST].tolist(), found.scores[:_BEST].tolist(), strict=True)
    # A score above 1 shows that the family is wrong.
    return tuple(f"{class_name(names, i)} {f'{score:.0%}' if score <= 1 else 'over 100%'}" for i, score in pairs)


def _text(error: Exception) -> str:
    return one_line(error, _LONGEST) or type(error).__name__


def _encode(sheet: Image) -> bytes:
    """Encode the sheet as JPEG, with the best quality that fits into a message."""
    encoded = (encode_jpeg(sheet, quality) for quality in _QUALITIES)
    small = next((each for each in encoded if len(each) <= _MOST_BYTES), None)
    return small if small is not None else encode_jpeg(sheet[::4, ::4], _QUALITIES[-1])
