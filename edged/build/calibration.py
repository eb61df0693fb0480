"""Names what the ranges of an int8 engine are measured on, for its key: the user's pictures, and those edged draws.

Asked on the daemon's event loop for every engine at every look at the box, so nothing here decodes a picture or reads a
file twice. The child measures on them in `conversion.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from edged.model.samples import content
from edged.vision.family import Recognition

# To be raised with every change of what is measured (conversion.py, pictures.py, backend/onnx_int8.py).
_METHOD = 1


def digest(recognition: Recognition, samples: Sequence[str]) -> str:
    """12 hexadecimal digits over all that calibration depends on besides the model. `samples` are paths.

    Empty for a model that takes no pictures, which cannot be calibrated.
    """
    if recognition.preprocess is None:
        return ""
    contents = sorted(map(content, samples))  # whatever the files are called
    return hashlib.sha256(msgspec.json.encode([_METHOD, recognition.preprocess, contents])).hexdigest()[:12]
