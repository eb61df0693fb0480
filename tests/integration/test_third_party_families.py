"""Families of other packages in a real daemon, from `edged family new` to detections, with good and with bad code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

import edged
from edged.client import Client
from edged.confinement import confine
from edged.errors import EdgedError, ErrorCode, FamilyFailed
from tests.family_package import describe, environment, install, save_model
from tests.integration.daemon import Daemon, wait_for

pytestmark = pytest.mark.heavy

NAME = "car-plates"
PICTURE = np.full((64, 128, 3), 90, np.uint8)  # the model's object is at (32, 16, 96, 48) of it
ALLOWED = '[families]\nallow = ["car-plates"]\n'

# Says in the log which process imported the package.
_TELLS = """
import os
import sys

print(f"{__name__} is imported in {os.getpid()}", file=sys.stderr, flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def box(client: Client, model: str) -> tuple[float, ...]:
    """Return the only detection in the picture."""
    result = client.infer(model, PICTURE)
    assert result.error is None
    (found,) = result.detections
    return found.x1, found.y1, found.x2, found.y2


def of(client: Client, name: str) -> edged.api_types.ModelInfo:
    return next(model for model in client.models() if model.name == name)


def test_package_not_allowed_serves_raw_until_a_reload_allows_it(site: Path) -> None:
    install(site, NAME, code=_TELLS)
    daemon = Daemon(config="[families]\n", environment=environment(site), builds=False)
    with daemon, daemon.client() as client:
        client.add_model("gate", save_model(daemon.home / "gate.onnx"), {"family": NAME})
        daemon.ready("gate")
        raw = client.infer("gate", PICTURE)
        assert sorted(raw.outputs) == ["centres", "scores", "sizes"]
        assert not raw.detections
        (note,) = of(client, "gate").notes
        assert "edged-family-car-plates 0.1.0" in note
        assert "families.allow" in note
        assert "is imported in" not in daemon.log.read_text()

        daemon.config.write_text(ALLOWED)
        client.reload()
        wait_for("the family is used", lambda: of(client, "gate").family == NAME)
        wait_for("the host decodes", lambda: client.infer("gate", PICTURE).detections)
        assert box(client, "gate") == pytest.approx((32, 16, 96, 48), abs=0.01)
        importers = set(map(int, re.findall(r"is imported in (\d+)", daemon.log.read_text())))
        assert importers & set(daemon.hosts())
        assert daemon.pid not in importers

        daemon.config.write_text("[families]\n")
        client.reload()
        wait_for("raw tensors are served again", lambda: client.infer("gate", PICTURE).outputs)


@pytest.mark.long
@pytest.mark.timeout(400)  # a build and two verifications on a busy box
def test_package_recognises_by_names_and_its_new_version_is_used(site: Path) -> None:
    module = install(site, NAME)
    with Daemon(config=ALLOWED, environment=environment(site)) as daemon, daemon.client() as client:
        client.add_model("gate", save_model(daemon.home / "gate.onnx"), {"backends": "onnxruntime"})
        engines = daemon.settled("gate")
        assert of(client, "gate").family == NAME
        assert box(client, "gate") == pytest.approx((32, 16, 96, 48), abs=0.01)
        # The reference is not verified again.
        built = [engine for engine in engines if engine.parts["recipe.optimization"] != "none"]
        before = {engine.key: engine.standard for engine in built if engine.verdict and engine.verdict.accepted}
        assert before

        module.write_text(module.read_text().replace("sizes[rows])", "sizes[rows] / 2)"))
        (site / "edged_family_car_plates-0.1.0.dist-info" / "METADATA").unlink()
        (site / "edged_family_car_plates-0.1.0.dist-info" / "entry_points.txt").unlink()
        describe(site, NAME, "0.2.0")
        smaller = pytest.approx((48, 24, 80, 40), abs=0.01)
        wait_for("the new code decodes", lambda: box(client, "gate") == smaller, 120)

        def is_verified_again() -> bool:
            now = {engine.key: engine.standard for engine in daemon.settled("gate")}
            return all(now[key] and now[key] != standard for key, standard in before.items())

        wait_for("engines are verified with the new code", is_verified_again, 120)


_LOADS = """
import sys
import edged

_, file, cache, *families = sys.argv
settings = {"family": "car-plates"}
with edged.load(file, settings=settings, build=False, families=families, cache=cache) as model:
    found = model.infer(file.replace(".onnx", ".png"))
    print([(round(d.x1), round(d.y1), round(d.x2), round(d.y2)) for d in found.detections], sorted(found.outputs))
"""


@pytest.mark.parametrize(
    ("families", "expected"), [([NAME], "[(32, 16, 96, 48)] []"), ([], "[] ['centres', 'scores', 'sizes']")]
)
def test_package_in_a_users_program_runs_if_the_program_names_it(
    site: Path, tmp_path: Path, families: list[str], expected: str
) -> None:
    install(site, NAME)
    file = save_model(tmp_path / "gate.onnx")
    cv2.imwrite(str(tmp_path / "gate.png"), PICTURE)
    command = [sys.executable, "-c", _LOADS, str(file), str(tmp_path / "cache"), *families]
    done = subprocess.run(command, env=environment(site), capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.strip() == expected, done.stderr


# -- bad code --------------------------------------------------------------------------------------------------------

_DECODES = """
class Bad(@CLASS@, frozen=True):
    def decode(self, outputs, index, placement, thresholds):
        found = super().decode(outputs, index, placement, thresholds)
        if placement.width == 128:  # in the host; the model has passed admission
            {body}
        return found


@CLASS@ = Bad
"""
# The family's name, what its decoder does, and what the error says.
_BAD = {
    "raises": ("raise KeyError('anchor')", "KeyError"),
    "infinite": ("return type(found)(found.boxes * np.inf, found.scores, found.class_ids)", "NaN or infinity"),
    "unequal": ("return type(found)(found.boxes[:, :3], found.scores, found.class_ids)", "boxes has shape"),
    "nothing": ("return None", "NoneType"),
    "hangs": ("while True: pass", "ran longer than"),
    "exits": ("import os; os._exit(7)", "exit status 7"),
}


@pytest.fixture(scope="module")
def bad_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    site = tmp_path_factory.mktemp("site")
    install(site, NAME)
    for name, (body, _) in _BAD.items():
        install(site, name, code=_DECODES.format(body=body))
    allowed = ", ".join(f'"{name}"' for name in (NAME, *_BAD))
    daemon = Daemon(config=f"[families]\nallow = [{allowed}]\n", environment=environment(site), builds=False)
    for name in (NAME, *_BAD):
        save_model(daemon.models / f"{name}.onnx")
        limit = '"limits.seconds" = "1"\n' if name == "hangs" else ""
        (daemon.models / f"{name}.toml").write_text(f'"family" = "{name}"\n{limit}')
    with daemon:
        yield daemon


@pytest.mark.parametrize("name", _BAD)
def test_package_that_fails_fails_only_requests_of_its_model(bad_daemon: Daemon, name: str) -> None:
    bad_daemon.ready(name)
    bad_daemon.ready(NAME)
    with bad_daemon.client() as client:
        hosts = bad_daemon.hosts()
        with pytest.raises(EdgedError, match=f"family {name} of package edged-family-{name} 0.1.0") as caught:
            client.infer(name, PICTURE)
        assert _BAD[name][1] in str(caught.value)
        if name not in ("hangs", "exits"):
            assert caught.value.code is ErrorCode.FAMILY_FAILED
            assert set(hosts) <= set(bad_daemon.hosts())
        assert box(client, NAME) == pytest.approx((32, 16, 96, 48), abs=0.01)


# What a family tries in an engine host. The error of the request has the outcomes.
_CURIOUS = """
import os
import socket
import subprocess


def attempt(what, action):
    try:
        action()
    except OSError as error:
        return f"{what}: denied {error.errno}"
    return f"{what}: allowed"


class Curious(@CLASS@, frozen=True):
    def decode(self, outputs, index, placement, thresholds):
        tried = [
            attempt("own file", lambda: open(__file__).close()),
            attempt("state", lambda: os.listdir("STATE/access")),
            attempt("write", lambda: open(__file__ + ".new", "w").close()),
            attempt("socket", lambda: socket.socket().close()),
            attempt("program", lambda: subprocess.run(["true"])),
            attempt("daemon", lambda: os.kill(os.getppid(), 0)),
        ]
        raise RuntimeError(", ".join(tried))


@CLASS@ = Curious
"""


@pytest.mark.skipif(bool(confine.lacking()), reason="this kernel cannot confine hosts completely")
def test_package_in_a_host_reaches_its_files_and_nothing_else(site: Path) -> None:
    daemon = Daemon(config=ALLOWED, environment=environment(site), builds=False)
    install(site, NAME, code=_CURIOUS.replace("STATE", str(daemon.state)))
    daemon.token("someone", "read")
    save_model(daemon.models / "gate.onnx")
    with daemon, daemon.client() as client:
        daemon.ready("gate")
        with pytest.raises(FamilyFailed) as caught:
            client.infer("gate", PICTURE)
        assert dict(re.findall(r"(\w[\w ]*): (allowed|denied)", str(caught.value))) == {
            "own file": "allowed",
            **dict.fromkeys(("state", "write", "socket", "program", "daemon"), "denied"),
        }
