"""A wheel of the working tree without its dependencies, for boxes that can import this environment's libraries."""

from __future__ import annotations

import zipfile
from pathlib import Path

from edged.version import __version__

CHECKOUT = Path(__file__).parents[3]


def make_wheel(folder: Path) -> Path:
    """Write the wheel into a folder; return its path."""
    path = folder / f"edged-{__version__}-py3-none-any.whl"
    about = f"edged-{__version__}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((CHECKOUT / "edged").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(CHECKOUT))
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: edged\nVersion: {__version__}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/entry_points.txt", "[console_scripts]\nedged = edged.__main__:main\n")
        archive.writestr(f"{about}/RECORD", "")
    return path
