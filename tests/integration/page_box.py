"""A daemon with a page, a model and two cameras, one of them disabled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edged.api_types import CameraInfo
from edged.shapes import MODEL_PATH
from tests.integration import web
from tests.integration.daemon import Daemon, wait_for

if TYPE_CHECKING:
    from typing_extensions import Self

_CAMERAS = """
[cameras.hall]
source = "scene:7"
model = "shapes"
max_fps = 10
[cameras.off]
source = "scene:8"
model = "shapes"
enabled = false
"""


class PageBox(Daemon):
    """A daemon with a page; `start` returns when its model is ready. `more`: lines of the configuration."""

    def __init__(self, listen: str = "127.0.0.1:0", more: str = "", cameras: str = _CAMERAS) -> None:
        super().__init__(
            "--model",
            f"shapes={MODEL_PATH}",
            environment={**os.environ, "EDGED_ACCESS_LOOPBACK": ""},
            builds=False,
            config=f'[page]\nlisten = "{listen}"\n{cameras}{more}',
            listen=("unix:HOME/edged.sock",),
            endpoints=1,
        )

    def start(self) -> Self:
        super().start()
        self.ready("shapes")
        return self

    @property
    def url(self) -> str:
        return self.addresses[1]

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> web.Told:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if method == "POST":
            named.setdefault("origin", self.url)
        return web.ask(self.url, method, path, body, named)

    def streaming(self) -> CameraInfo:
        """Wait until the camera's frames are answered; return the camera."""
        with self.client() as client:

            def found() -> CameraInfo | None:
                hall = next(each for each in client.cameras() if each.camera == "hall")
                return hall if hall.state == "streaming" and hall.width else None

            return wait_for("the camera streams", found)
