"""Finds the files of a reference, and the model settings that its source states. Each scheme has its own function.

Protocols: OCI Distribution Specification 1.1; `resolve` of the Hugging Face Hub; the endpoint `ort` of Roboflow, as
Roboflow Inference 1.x uses it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError, InvalidInput, NotFound, Refused
from edged.files import leads_outside
from edged.references import transfer
from edged.references.reference import Reference, file_name, is_private
from edged.references.transfer import Challenged, Location

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_TITLE = "org.opencontainers.image.title"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
# Files that are fetched with a model of the Hub, from the model's folder and from the root of the repository.
_COMPANIONS = ("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json")
# How Roboflow fits a picture into the input.
_FITS = {
    "Fit (black edges) in": {"preprocess.fit": "letterbox", "preprocess.pad": "0"},
    "Fit (grey edges) in": {"preprocess.fit": "letterbox", "preprocess.pad": "114"},
    "Fit (white edges) in": {"preprocess.fit": "letterbox", "preprocess.pad": "255"},
}
_NOT_DONE = ("contrast", "grayscale", "static-crop")  # preprocessing of Roboflow that edged does not have


class Source(NamedTuple):
    """The files of a reference. `files` maps a relative name to a location; the first file is the model. `settings` are
    the model settings that the source states. `notes` are lines for the user."""

    files: Mapping[str, Location]
    settings: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def find(reference: Reference) -> Source:
    """Return the files and settings of a reference. Raises InvalidInput if the reference does not have the form that
    its scheme requires. Raises ConfigError if a token in the environment is invalid, and the errors of
    `transfer.answer`."""
    if reference.scheme == "hf":
        return _hugging_face(reference)
    if reference.scheme == "oci":
        return _artefact(reference)
    if reference.scheme == "roboflow":
        return _roboflow(reference)
    return Source({file_name(reference.identity): Location(reference.identity, digest=reference.digest)})


def _hugging_face(reference: Reference) -> Source:
    path, _, revision = reference.place.partition("@")
    owner, _, rest = path.partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository and file) or leads_outside(file):
        raise InvalidInput(f"{reference.text} is not valid; give hf://OWNER/REPOSITORY/FILE@REVISION")
    host = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    token = _secret("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    base = f"{host}/{owner}/{repository}/resolve/{quote(revision or 'main', safe='')}"
    folder = str(Path(file).parent)
    companions = [
        f"{file}_data",
        f"{file}.data",
        *_COMPANIONS,
        *(f"{folder}/{each}" for each in _COMPANIONS if folder != "."),
    ]
    return Source({each: Location(f"{base}/{quote(each)}", headers, "", each != file) for each in (file, *companions)})


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    annotations: dict[str, str] = {}


class _Manifest(msgspec.Struct, frozen=True):
    layers: list[_Descriptor] = []


def _artefact(reference: Reference) -> Source:
    host, _, rest = reference.place.partition("/")
    name, at, digest = rest.partition("@")
    repository, _, tag = name.partition(":")
    if not (host and repository):
        raise InvalidInput(f"{reference.text} is not valid; give oci://REGISTRY/REPOSITORY:TAG or ...@sha256:DIGEST")
    base = f"{'http' if is_private(f'http://{host}') else 'https'}://{host}/v2/{repository}"
    manifest = f"{base}/manifests/{digest if at else tag or 'latest'}"
    headers = {"Accept": _MANIFEST}
    try:
        data, _ = transfer.answer(manifest, headers)
    except Challenged as error:
        authorization = {"Authorization": _authorization(host, error)}
        data, _ = transfer.answer(manifest, {**headers, **authorization})
    else:
        authorization = {}
    if at and hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
        raise Refused(f"{reference.text}: the registry's manifest does not have the digest {digest[:19]}...")
    try:
        layers = msgspec.json.decode(data, type=ready(_Manifest)).layers
    except msgspec.MsgspecError as error:
        raise Refused(f"{reference.text} has a manifest that edged cannot read: {error}") from None
    titled = {each.annotations.get(_TITLE, f"layer{number}"): each for number, each in enumerate(layers)}
    models = [title for title in titled if title.endswith(".onnx")] or list(titled)
    if (bad := next(filter(leads_outside, titled), None)) is not None:
        raise Refused(
            f"{reference.text} has a layer with the title {bad[:80]!r}, which leads outside the model's folder"
        )
    if len(models) != 1:
        found = f"it has: {', '.join(titled)}" if titled else "it has no layers"
        raise Refused(f"{reference.text} must have one layer whose title ends with .onnx; {found}")
    files = {}
    for title in sorted(titled, key=lambda title: title != models[0]):
        blob = titled[title].digest
        if re.fullmatch("sha256:[0-9a-f]{64}", blob) is None:
            raise Refused(f"{reference.text}: the digest of layer {title} is not a SHA-256")
        files[title] = Location(f"{base}/blobs/{blob}", authorization, blob.partition(":")[2])
    return Source(files)


def _authorization(host: str, error: Challenged) -> str:
    """Return the value of the header Authorization for a registry. Use the login in docker's config.json, if it has one
    for this host. Raises `error` if no token can be obtained."""
    login = _login(host)
    scheme, _, rest = error.challenge.partition(" ")
    if scheme.lower() == "basic" and login:
        return f"Basic {login}"
    parameters = dict(_PARAMETER.findall(rest))
    realm = parameters.pop("realm", "")
    if scheme.lower() != "bearer" or not is_private(realm):
        raise error
    asked = urlencode({key: parameters[key] for key in ("service", "scope") if key in parameters})
    headers = {"Authorization": f"Basic {login}"} if login else {}
    answered = transfer.answered_json(f"{realm}?{asked}", headers)
    token = (answered.get("token") or answered.get("access_token")) if isinstance(answered, dict) else None
    if not isinstance(token, str) or not (token.isascii() and token.isprintable()):
        raise error
    return f"Bearer {token}"


def _login(host: str) -> str:
    """Return USER:PASSWORD for a registry, in base64, from docker's config.json; empty without a login."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        found = json.loads((folder / "config.json").read_text())["auths"][host]["auth"]
        base64.b64decode(found, validate=True)
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(found)


def _roboflow(reference: Reference) -> Source:
    parts = reference.place.split("/")
    if len(parts) != 3 or not all(parts):
        raise InvalidInput(f"{reference.text} is not valid; give roboflow://WORKSPACE/PROJECT/VERSION")
    _, project, version = parts
    host = os.environ.get("ROBOFLOW_API_HOST") or "https://api.roboflow.com"
    query = {"nocache": "true", "dynamic": "true", "device": "edged", "api_key": _roboflow_key()}
    place = f"{host}/ort/{quote(project)}/{quote(version)}?{urlencode(query)}"
    described = _mapping(transfer.answered_json(place), "ort")
    model, names = described.get("model"), described.get("classes")
    if not isinstance(model, str) or not is_private(model):
        raise NotFound(f"{reference.text} has no ONNX model; train or export the version at Roboflow")
    settings: dict[str, str] = {}
    if isinstance(names, list) and all(isinstance(each, str) and _is_plain(each) for each in names):
        settings["names"] = ",".join(names)
    environment = described.get("environment")
    steps = _steps(transfer.answered_json(str(environment))) if is_private(str(environment)) else {}
    resize = steps.get("resize")
    if isinstance(resize, dict):
        settings |= _FITS.get(str(resize.get("format")), {"preprocess.fit": "stretch"})
    notes = tuple(
        f"Roboflow applies {step} to each picture; edged does not" for step in _NOT_DONE if _is_on(steps, step)
    )
    return Source({f"{project}-{version}.onnx": Location(model)}, settings, notes)


def _is_plain(name: str) -> bool:
    """Whether a class name can be part of the setting `names`, which separates names by commas."""
    return name.isprintable() and "," not in name


def _steps(environment: object) -> dict[str, object]:
    """Return a mapping from the name of each of Roboflow's preprocessing steps to the options of the step. Roboflow may
    encode them as a JSON string inside the JSON."""
    found = environment.get("PREPROCESSING") if isinstance(environment, dict) else None
    try:
        found = json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_on(steps: Mapping[str, object], step: str) -> bool:
    found = steps.get(step)
    return isinstance(found, dict) and bool(found.get("enabled"))


def _mapping(value: object, key: str) -> dict[str, object]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, dict):
        raise Refused(f"Roboflow's answer has no field {key!r}; check the reference, or update edged")
    return found


def _secret(variable: str) -> str:
    """Return a secret from an environment variable; empty if the variable is unset. Raises ConfigError if the value has
    characters that a token cannot have."""
    secret = os.environ.get(variable, "").strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"{variable} has characters that a token cannot have; set the variable again")
    return secret


def _roboflow_key() -> str:
    key, file = _secret("ROBOFLOW_API_KEY"), os.environ.get("ROBOFLOW_API_KEY_FILE", "")
    if not key and file:
        try:
            key = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"ROBOFLOW_API_KEY_FILE {file} cannot be read: {why}") from None
    if not key.strip():
        raise ConfigError("no key for Roboflow; set ROBOFLOW_API_KEY to the key, or ROBOFLOW_API_KEY_FILE to its file")
    return key.strip()
