"""Examines frames of cameras before they are collected: checks whether they can be decoded, and hashes the pictures."""

from __future__ import annotations

from pathlib import Path

import cv2

from edged.errors import EdgedError
from edged.files import read_regular
from edged.ipc.job_messages import Candidate, Sift, Sifted, SiftedFrame
from edged.models.samples import check_size
from edged.vision.draw import encode_jpeg
from edged.vision.image import PixelFormat, decode_reduced, from_raw
from edged.vision.likeness import likeness
from edged.vision.picture_header import read_header

_QUALITY = 95  # of JPEG, for frames that came as raw pixels
_REDUCTION = 8.0  # a hash needs few pixels, and a JPEG of 1/8 of the size is much cheaper to decode
_SIDE = 64  # pixels of the picture that is hashed


def sift(job: Sift) -> Sifted:
    """Examine candidates one after the other. Raises OSError if the disk fails."""
    return Sifted(tuple(_examined(Path(job.out), each) for each in job.candidates))


def _examined(folder: Path, candidate: Candidate) -> SiftedFrame:
    path = folder / candidate.name
    data = read_regular(path)
    try:
        if candidate.pixel_format:
            size = candidate.width, candidate.height, candidate.stride
            image = from_raw(data, PixelFormat(candidate.pixel_format), *size)
            data, suffix = encode_jpeg(image, _QUALITY), ".jpg"
            path.with_suffix(suffix).write_bytes(data)
        else:
            image = decode_reduced(data, lambda width, height: _REDUCTION).image
            suffix = _suffix(data)
        check_size(candidate.name, len(data))
    except (EdgedError, ValueError, cv2.error) as error:
        return SiftedFrame(problem=str(error))
    gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(gray, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    return SiftedFrame(likeness(small.astype("uint8", copy=False)), suffix)


def _suffix(data: bytes) -> str:
    header = read_header(data)
    name = header.format.lower() if header is not None else ""
    return ".jpg" if name == "jpeg" else f".{name}"
