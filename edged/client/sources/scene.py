"""A camera that draws: moving shapes, for trying things out without a camera."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edged import packages
from edged.client.sources.source import Live, Shot
from edged.errors import InvalidInput, Unsupported

_FPS = 15.0


def scene_camera(seed: str) -> Live:
    """Open the drawn camera of a seed, by default 1: JPEG of 640x480, 15 a second. InvalidInput for another text,
    Unsupported without OpenCV."""
    if not (seed or "1").isdecimal() or len(seed) > 9:
        raise InvalidInput(f"'scene:{seed[:20]}' is not a drawn scene; write scene: and a number, such as scene:7")
    if not packages.is_installed("cv2"):
        raise Unsupported(packages.missing("cv2", "a drawn scene"))
    return Live(f"scene:{seed or 1}", lambda live: _drawn(live, int(seed or "1")))


@contextmanager
def _drawn(live: Live, seed: int) -> Iterator[Iterator[Shot]]:
    yield _shots(live, seed)


def _shots(live: Live, seed: int) -> Iterator[Shot]:
    from edged.shapes import Scene
    from edged.vision.draw import encode_jpeg

    scene, number = Scene(seed), 0
    while not live.stopped.wait(1 / _FPS):
        picture, _ = scene.frame(number)
        number += 1
        yield Shot.now(lambda picture=picture: encode_jpeg(picture))  # type: ignore[misc]
