"""Chooses what the ranges of an int8 engine are measured on, and names it for its key: pictures of the user's, and some
that edged draws.

An engine answers best what it was measured on, so some pictures are held out to judge it by: every second one of the
user's where there are enough of them, and of drawn pictures there is another set (`pictures.py`).

Asked on the daemon's event loop for every engine that is planned, with known digests, so nothing here decodes a
picture. The child measures on them in `jobs/precision.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from edged.models.samples import SHA_256, content, is_tensors
from edged.vision.family import Recognition

# To be raised with every change of what is measured (jobs/precision.py, pictures.py, jobs/onnx_int8.py).
_METHOD = 2
_ENOUGH = 4  # with fewer pictures of the user's all are needed


def chosen(samples: Sequence[str], digest_of: Callable[[str], str] = content) -> dict[str, str]:
    """Which of the user's pictures to calibrate on: a path by the digest of its content, in the order of the digests.
    `digest_of` reads the file unless it knows the digest.

    Equal pictures count as one, what they are called does not matter, and what cannot be read is left out.
    """
    pictures = sorted((path for path in samples if not is_tensors(path)), reverse=True)
    found = {named: path for path in pictures if SHA_256.fullmatch(named := digest_of(path))}
    return {named: found[named] for named in sorted(found)[:: 2 if len(found) >= _ENOUGH else 1]}


def digest(recognition: Recognition, samples: Sequence[str], digest_of: Callable[[str], str] = content) -> str:
    """12 hexadecimal digits over all that calibration depends on besides the model. `samples` are paths.

    Empty for a model that takes no pictures, which cannot be calibrated.
    """
    return name(recognition, chosen(samples, digest_of)) if recognition.preprocess else ""


def name(recognition: Recognition, contents: Iterable[str]) -> str:
    """`digest`, of the digests that `chosen` names the pictures by."""
    return hashlib.sha256(msgspec.json.encode([_METHOD, recognition.preprocess, [*contents]])).hexdigest()[:12]
