"""State on disk that does not prove itself: the daemon finds it out again and serves the right answers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from edged.shapes import MODEL_PATH
from edged.shapes.scene import Scene
from tests.integration.daemon import Daemon

_PICTURE = Scene(3).frame(0)[0]


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def test_start_with_a_flipped_bit_in_every_state_file_serves_the_same_answers(built: Path) -> None:
    daemon, chance = Daemon("--model", f"shapes={MODEL_PATH}", builds=False), random.Random(7)
    with daemon:
        daemon.ready("shapes")
        with daemon.client() as client:
            right = client.infer("shapes", _PICTURE).detections
        for _ in range(2):
            daemon.stop()
            shutil.copytree(built, daemon.cache, dirs_exist_ok=True)
            files = [path for path in daemon.cache.rglob("*") if path.is_file() and path.stat().st_size]
            kinds = {"inspections", "admissions", "runtimes", "golden"}
            assert kinds <= {path.parent.name for path in files}
            for path in files:
                flip(path, chance)
            daemon.start()
            daemon.ready("shapes")
            with daemon.client() as client:
                assert client.infer("shapes", _PICTURE).detections == right
                assert not client.status().alarms
