"""Build the Debian package of edged: `make deb ARCH=arm64 PY=3.10 EXTRAS=jetson,media`.

All files come from wheels for the box's processor and Python; no program of the box runs. Builds are reproducible for
equal sources, extras and constraints: file times are those of the last commit, names are sorted, and files that
installers write about this machine are removed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import manpages
import trim

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SYSTEMD = ROOT / "systemd"
UNITS = ("edged.service", "edged.socket", "edged-operate.socket")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
CONFFILES = ("/etc/edged/edged.toml",)
APP = Path("opt/edged/dist")
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
# The oldest glibc of the systems that have these Pythons: Ubuntu 22.04.
GLIBC = "2.35"
# The base package: 70 MB in a quarter of a minute, 58 MB in two minutes.
COMPRESSIONS = {"fast": ("-Zzstd", "-z1"), "good": ("-Zzstd", "-z9"), "best": ("-Zxz",)}


@dataclass(frozen=True)
class Target:
    """A package to build. `extras` are those of pyproject.toml, in any order; `revision` distinguishes two builds."""

    version: str
    arch: str
    python: str
    extras: tuple[str, ...] = ()
    revision: str = "1"

    @property
    def package_version(self) -> str:
        """The Debian version with Python and extras, such as `0.1.0+py310.jetson.media-1`."""
        flavour = ".".join(("py" + self.python.replace(".", ""), *sorted(self.extras)))
        # A pre-release comes before its release: 1.0~rc1.
        return f"{re.sub(r'(?=(a|b|rc)[0-9])', '~', self.version)}+{flavour}-{self.revision}"

    @property
    def file_name(self) -> str:
        return f"edged_{self.package_version}_{self.arch}.deb"

    @property
    def sees_system(self) -> bool:
        """Whether it can import the system's Python packages, as JetPack's TensorRT."""
        return "jetson" in self.extras


def control(target: Target, installed_bytes: int) -> str:
    """Return the control file (deb-control(5))."""
    suggests = "nvidia-jetpack" if target.sees_system else "intel-opencl-icd"
    return f"""Package: edged
Version: {target.package_version}
Architecture: {target.arch}
Maintainer: The edged developers <edged@localhost>
Installed-Size: {-(-installed_bytes // 1024)}
Pre-Depends: python{target.python}
Depends: libc6 (>= {GLIBC}), libgcc-s1, libstdc++6, zlib1g, passwd, init-system-helpers (>= 1.54)
Recommends: systemd
Suggests: {suggests}
Conflicts: edged-refresh
Replaces: edged-refresh
Section: video
Priority: optional
Description: inference daemon for cameras on edge boxes
 Serves ONNX models to cameras and programs from compiled engines that it builds,
 verifies and swaps while it serves, and keeps serving when drivers, libraries
 and power change. Speaks the Open Inference Protocol, as Triton does.
 .
 For Python {target.python}. Contains: {", ".join(sorted(target.extras)) or "ONNX Runtime only"}.
"""


def md5sums(root: Path) -> str:
    """Return the sums of regular files without conffiles (deb-md5sums(5)), sorted by name."""
    lines = []
    for path in _files(root):
        name = str(path.relative_to(root))
        if f"/{name}" not in CONFFILES and not path.is_symlink():
            lines.append(f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {name}\n")
    return "".join(lines)


def script(name: str, target: Target, state_format: int) -> str:
    """Return a maintainer script for this package."""
    text = (HERE / name).read_text()
    for word, value in (
        ("@VERSION@", target.package_version),
        ("@EDGED@", target.version),
        ("@FORMAT@", str(state_format)),
    ):
        text = text.replace(word, value)
    return text


def constraints(target: Target) -> str:
    """Return the versions to install. On a Jetson the CUDA bindings must match JetPack."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    lines += (HERE / "constraints.txt").read_text().splitlines()
    if target.sees_system:
        lines = [line for line in lines if not line.startswith("cuda-bindings")]
        lines += (HERE / "jetson.txt").read_text().splitlines()
    return "\n".join(lines) + "\n"


def vendor(target: Target, wheel: Path, site: Path, uv: Sequence[str]) -> None:
    """Install edged and its dependencies from wheels into a folder, and remove unneeded files."""
    extras = f"[{','.join(target.extras)}]" if target.extras else ""
    platform = f"{PROCESSORS[target.arch]}-manylinux_{GLIBC.replace('.', '_')}"
    with tempfile.TemporaryDirectory() as scratch:
        limits = Path(scratch, "constraints.txt")
        limits.write_text(constraints(target))
        install = [*uv, "pip", "install", "--quiet", "--target", str(site), "--python-version", target.python]
        install += ["--python-platform", platform, "--only-binary", ":all:", "--link-mode", "copy"]
        install += ["--constraint", str(limits)]
        _run(*install, f"{wheel}{extras}")
        if "tracking" in target.extras:  # its dependencies include an OpenCV that needs a display
            _run(*install, "--no-deps", "trackers")
    trim.trim(site)


def make_tree(root: Path, target: Target, wheel: Path, uv: Sequence[str], date: int) -> None:
    """Write the files of the package below `root`."""
    app = root / APP
    vendor(target, wheel, app / f"lib/python{target.python}/site-packages", uv)
    (app / "bin").mkdir()
    (app / "bin/python3").symlink_to(f"/usr/bin/python{target.python}")
    sees = "true" if target.sees_system else "false"
    (app / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = {sees}\nversion = {target.python}\n"
    )
    _copy(HERE / "launcher", app / "bin/edged", 0o755)
    _copy(HERE / "main.py", app / "libexec/edged", 0o755)
    for unit in UNITS:
        _copy(SYSTEMD / unit, root / "usr/lib/systemd/system" / unit)
    for kind in ("sysusers.d", "tmpfiles.d"):
        _copy(SYSTEMD / kind / "edged.conf", root / "usr/lib" / kind / "edged.conf")
    _copy(SYSTEMD / "edged.toml", root / "etc/edged/edged.toml")
    _copy(HERE / "copyright", root / "usr/share/doc/edged/copyright")
    _write(root / "usr/share/doc/edged/changelog.gz", _gzip((ROOT / "CHANGELOG.md").read_bytes()))
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/edged").symlink_to("/opt/edged/current/bin/edged")
    for name, page in manpages.pages(target.version, date).items():
        _write(root / "usr/share/man/man1" / f"{name}.1.gz", _gzip(page.encode()))
    for name, text in manpages.completions().items():
        _write(root / "usr/share" / name, text.encode())


def build(target: Target, wheel: Path, out: Path, uv: Sequence[str], date: int, compress: str) -> Path:
    """Build the package into the folder `out`; return its path. `date` in seconds since 1970."""
    with tempfile.TemporaryDirectory(prefix="edged-deb-") as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        make_tree(root, target, wheel, uv, date)
        size = sum(path.lstat().st_size for path in _files(root) if not path.is_symlink())
        about = root / "DEBIAN"
        sums = md5sums(root)
        _write(about / "control", control(target, size).encode())
        _write(about / "md5sums", sums.encode())
        _write(about / "conffiles", "".join(f"{name}\n" for name in CONFFILES).encode())
        _copy(HERE / "triggers", about / "triggers")
        for name in SCRIPTS:
            _write(about / name, script(name, target, _state_format()).encode(), 0o755)
        _settle(root, date)
        out.mkdir(parents=True, exist_ok=True)
        package = out / target.file_name
        # One thread: with several, the bytes would depend on the number of processors. dpkg 1.21.1 of Ubuntu 22.04 does
        # not know the variable, nor levels above 9.
        words = ("dpkg-deb", "--root-owner-group", *COMPRESSIONS[compress], "--build", str(root), str(package))
        _run(*words, SOURCE_DATE_EPOCH=str(date), DPKG_DEB_THREADS_MAX="1")
    return package


def _state_format() -> int:
    from edged.store.state_format import FORMAT

    return FORMAT


def _settle(root: Path, date: int) -> None:
    """Set the same time on all files, and the modes that Debian requires, independent of the umask."""
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (date, date), follow_symlinks=False)


def _files(root: Path) -> Iterator[Path]:
    """Yield files and links below `root`, sorted by name."""
    return iter(sorted(path for path in root.rglob("*") if path.is_symlink() or path.is_file()))


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _copy(source: Path, path: Path, mode: int = 0o644) -> None:
    _write(path, source.read_bytes(), mode)


def _run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(
            f"build.py: {Path(command[0]).name} failed with status {done.returncode}; see its output above"
        )
    return done.stdout


def _date() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    done = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("git") else None
    if done is None or done.returncode:
        why = (
            done.stderr.strip().splitlines()[-1] if done is not None and done.stderr.strip() else "git is not installed"
        )
        raise SystemExit(
            f"build.py: the time of the last commit is unknown ({why}); set the time of the package's files in seconds:"
            " SOURCE_DATE_EPOCH=$(date +%s)"
        )
    return int(done.stdout)


def _wheel(uv: Sequence[str], folder: Path, date: int) -> Path:
    words = ("build", "--quiet", "--wheel", "--build-constraints", str(ROOT / "constraints.txt"))
    _run(*uv, *words, "--out-dir", str(folder), str(ROOT), SOURCE_DATE_EPOCH=str(date))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=PROCESSORS, default="amd64")
    parser.add_argument("--python", default="3.11", choices=["3.10", "3.11", "3.12", "3.13"], help="the box's Python")
    parser.add_argument("--extras", default="", help="such as openvino,media; jetson for JetPack; empty for none")
    parser.add_argument("--revision", default="1", help="the end of the package's version")
    parser.add_argument("--wheel", type=Path, help="edged's wheel; default: build it from this checkout")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--compress", choices=COMPRESSIONS, default="good")
    parser.add_argument("--uv", default=f"{sys.executable} -m uv", help="the command uv")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    from edged.version import __version__

    given = _arguments(words)
    if shutil.which("dpkg-deb") is None:
        raise SystemExit("build.py: dpkg-deb is not installed: sudo apt install dpkg")
    extras = tuple(filter(None, given.extras.split(",")))
    if given.arch == "arm64" and {"tensorrt", "tensorrt-rtx"} & set(extras):
        raise SystemExit("build.py: TensorRT has no wheels for arm64; on a Jetson use JetPack's: EXTRAS=jetson")
    target = Target(__version__, given.arch, given.python, extras, given.revision)
    date, uv = _date(), given.uv.split()
    with tempfile.TemporaryDirectory() as scratch:
        package = build(target, given.wheel or _wheel(uv, Path(scratch), date), given.out, uv, date, given.compress)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    print(f"{package}: {package.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
