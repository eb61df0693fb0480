"""The zoo as a command.

python -m tests.zoo list                    the manifest: every model, its expected outcome, how it is made
python -m tests.zoo write FOLDER [NAME...]  write models, each into its own folder
python -m tests.zoo try [NAME...]           whether ONNX Runtime alone runs each
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.zoo import runtime
from tests.zoo.exhibit import Exhibit
from tests.zoo.manifest import exhibits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "write", "try"])
    parser.add_argument("rest", nargs="*", metavar="FOLDER or NAME")
    arguments = parser.parse_args()
    folder = arguments.rest.pop(0) if arguments.what == "write" and arguments.rest else ""
    known = {exhibit.name: exhibit for exhibit in exhibits(runtime.reach())}
    if unknown := [name for name in arguments.rest if name not in known]:
        sys.exit(f"unknown models: {', '.join(unknown)}; `list` prints all")
    chosen = [known[name] for name in arguments.rest] or list(known.values())
    if arguments.what == "list":
        for each in chosen:
            print(f"{each.name:30} {_endings(each):40} {each.how}")
    elif arguments.what == "try":
        _try(chosen)
    elif folder:
        for each in chosen:
            print(_made(each, Path(folder)))
    else:
        sys.exit("name the folder to write into")


def _endings(exhibit: Exhibit) -> str:
    warning = f" ({exhibit.warns.value})" if exhibit.warns else ""
    return " | ".join(map(str, exhibit.endings)) + warning


def _made(exhibit: Exhibit, root: Path) -> Path:
    folder = root / exhibit.name
    folder.mkdir(parents=True)
    return exhibit.make(folder)


def _try(chosen: list[Exhibit]) -> None:
    import onnxruntime  # imported once, before the forks

    print(f"ONNX Runtime {onnxruntime.__version__}")
    for each in chosen:
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            path = _made(each, Path(folder))
            # Opening a FIFO would block.
            result = runtime.tried(path) if path.is_file() else "no file"
        print(f"{each.name:30} {_endings(each):40} {result}", flush=True)


if __name__ == "__main__":
    main()
