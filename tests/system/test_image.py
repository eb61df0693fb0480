"""The container image: built by buildah, and run as its user with a read-only root, as in docs/packages.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import wait_for
from tests.system.packages import Unavailable, debs
from tests.system.packages.chroot import archive

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
_TAG = "localhost/edged:test"
# What a container engine does with --read-only, a tmpfs and volumes. Not every machine can run a container engine.
_RUN = """
root=$1 volumes=$2; shift 2
mount --bind "$root" "$root"
for name in var/lib var/cache run; do mount --bind "$volumes/${name##*/}" "$root/$name/edged"; done
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid=edged --regid=edged --init-groups --no-new-privs --bounding-set=-all env -i "$@"
"""


class Image:
    """The built image, its root folder and its settings."""

    def __init__(self, home: Path, package: Path) -> None:
        self._storage = home / "storage.conf"
        folders = f'graphroot = "{home}/graph"\nrunroot = "{home}/run"\n'
        self._storage.write_text(f'[storage]\ndriver = "vfs"\n{folders}')
        base = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", base, str(archive("bookworm")), "/")
        self._buildah("commit", "--quiet", base, "localhost/base")
        options = "--isolation chroot --pull-never"
        build = {"DEB": str(package), "BASE": "localhost/base", "TAG": _TAG, "OPTIONS": options}
        self._run(["sh", str(debs.ROOT / "packaging/container/build")], build)
        self.config: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", _TAG))["Docker"]["config"]
        self.root = Path(self._buildah("mount", self._buildah("from", "--pull-never", _TAG)))
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # as a container engine does
        self._volumes = home / "volumes"
        for parent in ("var/lib", "var/cache", "run"):
            name, owner = Path(parent).name, (self.root / parent / "edged").stat()
            # An empty volume gets the owner of the image's folder.
            (self._volumes / name).mkdir(parents=True)
            os.chown(self._volumes / name, owner.st_uid, owner.st_gid)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in a new container."""
        words = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private"]
        words += ["sh", "-ec", _RUN, "run", str(self.root), str(self._volumes), *self.config["Env"], *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in a container with the same volumes; return its status and output."""
        with self.start(*command) as process:
            output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def _buildah(self, *words: str) -> str:
        return self._run(["buildah", *words], {}).strip()

    def _run(self, command: list[str], environment: Mapping[str, str]) -> str:
        settings = os.environ | {"CONTAINERS_STORAGE_CONF": str(self._storage)} | environment
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt install buildah")
    home = tmp_path_factory.mktemp("image")
    try:
        archive("bookworm")
        yield Image(home, debs.build(home, "--python", "3.11"))
    except Unavailable as error:
        pytest.skip(str(error))


def test_image_serves_as_its_user_with_a_read_only_root(image: Image) -> None:
    config = image.config
    assert config["User"] == "edged"
    assert set(config["Volumes"]) == {"/var/lib/edged", "/var/cache/edged", "/run/edged"}
    check = config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    assert image.run(*check[1:])[0] != 0, "no daemon runs yet"
    daemon = image.start(*config["Entrypoint"], *config["Cmd"])
    try:
        wait_for("the health check succeeds", lambda: image.run(*check[1:])[0] == 0, 60)
        identity = image.run("id", "-u")
        assert identity[0] == 0
        assert identity[1].strip() == "10001", "deploy/k3s names this id"
        assert "Read-only file system" in image.run("touch", "/opt/edged/file")[1]
        model = next(image.root.glob("opt/edged/releases/*/lib/python3*/site-packages/edged/shapes/shapes.onnx"))
        status, output = image.run("edged", "models", "add", "shapes", f"/{model.relative_to(image.root)}")
        assert status == 0, output
        wait_for("the daemon answers", lambda: "shapes" in image.run("edged", "models", "list")[1], 60)
        wait_for("the health check succeeds again", lambda: image.run(*check[1:])[0] == 0, 60)
        assert image.run("sh", "-c", "echo none > /var/lib/edged/models/broken.onnx")[0] == 0
        wait_for("an alarm is raised", lambda: "alarm" in image.run("edged", "status")[1], 60)
        assert image.run(*check[1:])[0] == 0, "an alarm must not make the container unhealthy"
    finally:
        os.killpg(daemon.pid, 9)
        print(daemon.communicate()[0][-2000:])
