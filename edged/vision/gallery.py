"""A gallery: named vectors of pictures, and a search for the vector that is nearest to an embedding. Pure.

Vectors can be compared only if the same model made them from pictures that were prepared in the same way. Such vectors
are in the same *space*. edged does not use a gallery of another space.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidInput
from edged.vision.content import Embedding
from edged.vision.family import Recognition
from edged.vision.preprocess import Preprocess

MOST_PICTURES = 10_000
MOST_BYTES = 32 << 20  # of the vectors of one gallery
MOST_NAME = 64  # characters
_FLOAT = np.dtype("<f4")
_DEFAULTS = Preprocess(0, 0)


@functools.lru_cache(maxsize=256)  # called for every frame
def space_of(digest: str, recognition: Recognition) -> str:
    """Return the space of a model's vectors, a hexadecimal text. Only vectors of the same space can be compared.
    `digest` is the digest of the model and its weights.

    All engines of a model have the same space, because verification ensures that they agree. Names and thresholds are
    left out, because they do not change vectors. Fields of `Preprocess` with default values are left out, so that a new
    field does not invalidate galleries.
    """
    fed = msgspec.to_builtins(recognition.preprocess) if recognition.preprocess is not None else {}
    usual: Mapping[str, object] = msgspec.to_builtins(_DEFAULTS)
    reading = recognition.reading
    parts = {
        "model": digest,
        "family": recognition.family or "",
        "outputs": reading.outputs,
        "form": reading.form,
        "preprocess": {key: value for key, value in sorted(fed.items()) if value != usual[key]},
    }
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Gallery(msgspec.Struct, frozen=True):
    """The named vectors of one model. `names` has the name of each row; several rows may have the same name.

    `vectors` has a vector of length 1 for each name, row by row. A vector is `size` little-endian float32 values.
    """

    space: str
    size: int
    names: tuple[str, ...]
    vectors: bytes

    def __post_init__(self) -> None:
        if self.size < 1 or len(self.vectors) != len(self.names) * self.size * _FLOAT.itemsize:
            raise ValueError(
                f"the gallery has {len(self.vectors)} bytes, not {len(self.names)} vectors of {self.size} floats"
            )
        if not np.isfinite(self.rows()).all():
            raise ValueError("a vector of the gallery has NaN or infinity")

    def rows(self) -> npt.NDArray[np.float32]:
        """Return the vectors, float32 [n, size], read-only."""
        return np.frombuffer(self.vectors, _FLOAT).reshape(-1, self.size)

    def counts(self) -> dict[str, int]:
        """Return the number of pictures of each name, sorted by name."""
        return dict(sorted(Counter(self.names).items()))

    def nearest(self, embedding: Embedding) -> tuple[str, float]:
        """Return the name of the nearest picture and its similarity, -1..1. Return an empty name and 0 if no vector can
        be compared with the embedding.

        The search takes about 1 ms for 10,000 vectors of 512 values. It does not use a matrix product, because BLAS
        would share this among threads, and on a busy box the event loop would wait long for these threads.
        """
        vector = embedding.vector()
        if not self.names or len(vector) != self.size or not vector.any():
            return "", 0.0
        similarities = np.einsum("ij,j->i", self.rows(), vector)
        best = int(similarities.argmax())
        return self.names[best], float(np.clip(similarities[best], -1.0, 1.0))

    def with_pictures(self, name: str, embeddings: Sequence[Embedding]) -> Gallery:
        """Return the gallery with more pictures of a name. Raises InvalidInput if an embedding has another size, or if
        the gallery would be too large."""
        if any(len(each.vector()) != self.size for each in embeddings):
            raise InvalidInput(
                f"the vectors of the gallery have {self.size} values, but the model returned an embedding of another"
                " size; a gallery needs a model whose embeddings all have the same size"
            )
        count = len(self.names) + len(embeddings)
        if count > MOST_PICTURES or count * self.size * _FLOAT.itemsize > MOST_BYTES:
            limit = f"{MOST_PICTURES} pictures, {MOST_BYTES >> 20} MiB"
            raise InvalidInput(f"the gallery is full ({limit}); remove a name first: edged gallery remove MODEL NAME")
        vectors = b"".join((self.vectors, *(each.data for each in embeddings)))
        return Gallery(self.space, self.size, self.names + (name,) * len(embeddings), vectors)

    def without(self, name: str) -> Gallery:
        """Return the gallery without the pictures of a name."""
        kept = [row for row, each in enumerate(self.names) if each != name]
        vectors = self.rows()[kept].tobytes()
        return Gallery(self.space, self.size, tuple(self.names[row] for row in kept), vectors)


def check_name(name: str) -> str:
    """Return a name without spaces around it. Raises InvalidInput if the name is empty, too long, or not one printable
    line."""
    plain = name.strip()
    if not plain or len(plain) > MOST_NAME or not plain.isprintable():
        raise InvalidInput(f"invalid name {name[:MOST_NAME]!r}; give 1 to {MOST_NAME} printable characters")
    return plain
