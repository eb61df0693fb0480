"""A daemon with a page, a model and two cameras, of which one is disabled."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

from edged.api_types import CameraInfo
from edged.client import Client
from edged.shapes import MODEL_PATH
from tests.integration.daemon import wait_for

_CONFIG = """
listen = ["unix:{folder}/edged.sock"]
state = "{folder}/state"
cache = "{folder}/cache"
[engines]
build = "command"
[models]
shapes = "{model}"
[page]
listen = "{listen}"
{cameras}
{more}
"""

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


class Box:
    """A daemon with a page."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", more: str = "", cameras: str = _CAMERAS) -> None:
        self.state = folder / "state"
        config = folder / "edged.toml"
        config.write_text(_CONFIG.format(folder=folder, model=MODEL_PATH, listen=listen, more=more, cameras=cameras))
        command = [sys.executable, "-m", "edged", "serve", "--config", str(config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.url = next(line.split()[-1] for line in self.process.stdout if "http" in line)
        self.client = Client(f"unix:{folder}/edged.sock")
        wait_for("the model", lambda: [each for each in self.client.models() if each.state == "ready"])

    def close(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()

    def token(self, name: str, *roles: str) -> str:
        words = [word for role in roles for word in ("--role", role)]
        command = [sys.executable, "-m", "edged", "tokens", "new", name, *words, "--state", str(self.state)]
        secret = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        time.sleep(1.0)  # a running daemon sees it within a second
        return secret

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.partition("//")[2], timeout=30)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if method == "POST":
            named.setdefault("origin", self.url)
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def streaming(self) -> CameraInfo:
        end = time.monotonic() + 60
        while True:
            found = next(each for each in self.client.cameras() if each.camera == "hall")
            if found.state == "streaming" and found.width:
                return found
            assert time.monotonic() < end, found
            time.sleep(0.1)
