"""Finds the exporter for a source. Nothing of the source is executed: names in pickles are read without unpickling."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edged.errors import InvalidInput, Refused

FORMS = (
    "an Ultralytics checkpoint (.pt), PACKAGE.MODULE:FACTORY, timm:NAME, torchvision:NAME, rfdetr:NAME, a Keras model"
    " (.keras), a folder of Hugging Face, TensorFlow or PaddlePaddle, or a pickled estimator (.pkl, .joblib)"
)
# The packages to install for each exporter, as arguments of pip.
PACKAGES = {
    "huggingface": "transformers torch onnx onnxscript",
    "keras": "tensorflow tf2onnx",
    "paddle": "paddlepaddle paddle2onnx",
    "rfdetr": "'rfdetr[onnx]'",
    "sklearn": "scikit-learn skl2onnx onnxmltools",
    "timm": "timm torch onnx onnxscript",
    "torch_module": "torch onnx onnxscript",
    "torchvision": "torchvision torch onnx onnxscript",
    "ultralytics": "ultralytics onnx",
}
# If one of these modules is missing, the error names the packages in PACKAGES; otherwise, the module itself.
KNOWN = frozenset(
    (
        *(
            "huggingface_hub",
            "joblib",
            "keras",
            "numpy",
            "onnx",
            "onnxmltools",
            "onnxruntime",
            "onnxscript",
        ),
        *("paddle", "paddle2onnx", "rfdetr", "sklearn", "skl2onnx", "tensorflow", "tf2onnx", "timm", "torch"),
        *("torchvision", "transformers", "ultralytics"),
    )
)
_NAMED = ("rfdetr", "timm", "torchvision")
_PICKLES = (".pkl", ".pickle", ".joblib")
_LARGEST = 64 << 20  # bytes of data.pkl; the tensors are in other files of the archive
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "BINUNICODE8")


class Source(NamedTuple):
    """The source of an export. `kind` is the exporter, a file in `frameworks`. The exporter loads `name`, an absolute
    path or a name. `title` names the source for people."""

    kind: str
    name: str
    title: str
    reads: tuple[str, ...] = ()  # files and folders that the exporter reads


def find(text: str) -> Source:
    """Return the source that the user named in `text`, with its exporter. Raises InvalidInput if no exporter fits.
    Raises Refused for a .pt or .pth file that is not a checkpoint of Ultralytics."""
    prefix, _, rest = text.partition(":")
    path = Path(text)
    if prefix in _NAMED and rest and not path.exists():
        return Source(prefix, rest, text)
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    if rest and not any(mark in text for mark in "/\\ ") and all(part.isidentifier() for part in prefix.split(".")):
        return Source("torch_module", text, text)
    raise InvalidInput(f"{text!r} is neither a file nor a model that edged can export; give {FORMS}")


def _folder(path: Path) -> Source:
    place = str(path.absolute())
    if (path / "config.json").exists():
        return Source("huggingface", place, path.name, (place,))
    if (path / "saved_model.pb").exists():
        return Source("keras", place, path.name, (place,))
    if any(path.glob("*.pdiparams")):
        return Source("paddle", place, path.name, (place,))
    raise InvalidInput(f"folder {path} has neither config.json, saved_model.pb nor a .pdiparams file; give {FORMS}")


def _file(path: Path) -> Source:
    place, suffix = str(path.absolute()), path.suffix.lower()
    if suffix in _PICKLES:
        return Source("sklearn", place, path.name, (place,))
    if suffix == ".keras":
        return Source("keras", place, path.name, (place,))
    if suffix in (".pt", ".pth"):
        packages = {name.partition(".")[0] for name in globals_of(path)}
        if "ultralytics" in packages:
            return Source("ultralytics", place, path.name, (place,))
        known = "only weights" if packages <= {"collections", "torch"} else f"classes of {', '.join(sorted(packages))}"
        raise Refused(
            f"{path.name} has {known}, not an Ultralytics model; export the torch module of these weights:"
            " edged export PACKAGE.MODULE:FACTORY --weights FILE"
        )
    if suffix == ".onnx":
        raise InvalidInput(f"{path.name} is an ONNX file already; add it: edged models add NAME {path}")
    raise InvalidInput(f"edged cannot export {path.name}; give {FORMS}")


def globals_of(path: Path) -> list[str]:
    """Return the names ("module.name") that loading a checkpoint of torch would import. Imports nothing. Raises Refused
    if the file is not a checkpoint of torch 1.6 or newer, or if its data.pkl is larger than 64 MiB."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(each for each in archive.infolist() if each.filename.endswith("/data.pkl"))
            if member.file_size > _LARGEST:
                raise Refused(
                    f"{path.name}: its data.pkl has more than {_LARGEST >> 20} MiB; save the model without other data"
                )
            return list(dict.fromkeys(_globals(archive.read(member))))
    except Refused:
        raise
    except Exception as error:  # the errors of hostile archives have no common class
        raise Refused(
            f"{path.name} is not a checkpoint of torch 1.6 or newer: {error or 'the file has no data.pkl'}"
        ) from None


def _globals(data: bytes) -> Iterator[str]:
    texts: list[str] = []
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            yield str(argument).replace(" ", ".")
        elif operation.name == "STACK_GLOBAL":
            yield ".".join(texts[-2:])
        elif operation.name in _TEXTS:
            texts.append(str(argument))
