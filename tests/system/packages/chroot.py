"""A small Debian system in a folder. mmdebstrap creates it once; it is kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.system.packages import Unavailable

# Enters the system in new namespaces, with the file systems that programs expect.
_ENTER = """
root=$1; shift
mount --bind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \\
    "$@"
"""
# Files that apt, dpkg and logs keep about any package, and copies of the tested packages.
_NOT_OURS = ("var/lib/dpkg/", "var/lib/apt", "var/log/", "var/cache/", "root/")
_UNSHARE = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private")


class Chroot:
    """Debian's release `suite` with the package `python3`, unpacked into a folder."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.root = folder
        folder.mkdir()
        subprocess.run(["tar", "-C", str(folder), "--exclude=./dev/*", "-xf", str(archive(suite))], check=True)
        (folder / "etc/hosts").write_text("127.0.0.1 localhost\n")
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        self.run("apt-get", "update", "-qq", check=False)  # without network, everything needed must be present already

    def run(self, *command: str, check: bool = True, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command as the system's root; it must succeed unless `check` is False."""
        words = [*_UNSHARE, "sh", "-ec", _ENTER, "enter", str(self.root), *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        if check:
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done

    def install(self, package: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Install a package with apt, as an owner does; downgrades are allowed."""
        shutil.copy(package, self.root / "root")
        options = ("-y", "--no-install-recommends", "--allow-downgrades")
        return self.run("apt-get", "install", *options, f"/root/{package.name}", check=check)

    def files(self) -> set[str]:
        """Return all files, by their paths below the system's root."""
        found = (os.path.join(folder, name) for folder, _, names in os.walk(self.root) for name in names)
        names = {os.path.relpath(path, self.root) for path in found}
        return {
            name
            for name in names
            if not name.startswith(("var/lib/dpkg/", "var/lib/apt", "var/log/", "var/cache/", "root/"))
        }


def archive(suite: str) -> Path:
    """Return the system as a tar file; create it on first use."""
    if os.geteuid() != 0:
        raise Unavailable("needs root, to create a system in a folder")
    if shutil.which("mmdebstrap") is None:
        raise Unavailable("mmdebstrap is not installed: apt install mmdebstrap")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    archive = Path(base) / "edged-packages" / f"{suite}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(".part.tar")
        command = ["mmdebstrap", "--variant=apt", "--include=python3,ca-certificates", suite, str(part)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise Unavailable(f"mmdebstrap cannot create {suite}: {done.stderr.strip().splitlines()[-1]}")
        part.rename(archive)
    return archive
