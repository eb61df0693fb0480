"""The manifests in deploy/ are valid: by the schemas of Kubernetes, and by the types of KServe's own Python package."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = "1.36"
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in sorted(DEPLOY.rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def kinds() -> list[str]:
    return [str(each.values[0]["kind"]) for each in MANIFESTS]  # type: ignore[index]


def test_all_kinds_are_here() -> None:
    found = kinds()
    assert {"ClusterServingRuntime", "ServingRuntime", "InferenceService", "DaemonSet", "ConfigMap"} <= set(found)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifest_is_valid(manifest: dict[str, Any]) -> None:
    group = manifest["apiVersion"].partition("/")[0]
    if group == "serving.kserve.io":
        check_kserve(manifest, f"{manifest['apiVersion'].partition('/')[2].capitalize()}{manifest['kind']}", "")
    else:
        check_kubernetes(manifest)


def check_kubernetes(manifest: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(manifest, KUBERNETES, strict=True)


def check_kserve(value: Any, kind: str, place: str) -> None:
    """Check a value against a class of the package `kserve`: no unknown keys, the right types."""
    if found := re.fullmatch(r"list\[(\w+)\]", kind):
        assert isinstance(value, list), place
        for number, each in enumerate(value):
            check_kserve(each, found[1], f"{place}[{number}]")
    elif kind.startswith("dict("):
        assert isinstance(value, dict), place
        assert all(isinstance(each, str) for pair in value.items() for each in pair), place
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind, f"{place} is {value!r}, not {kind}"
    elif kind in _PODS:
        check_kubernetes(_PODS[kind](value))
    elif kind == "V1ObjectMeta":
        assert value.keys() <= {"name", "namespace", "labels", "annotations"}
    else:
        fields = _fields(kind)
        for key, each in value.items():
            assert key in fields, f"{place}.{key} is unknown to {kind}"
            check_kserve(each, fields[key], f"{place}.{key}")


def _pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


# Parts of pods, which KServe passes on.
_PODS: dict[str, Any] = {
    "V1Container": lambda value: _pod(containers=[value]),
    "V1Volume": lambda value: _pod(volumes=[value]),
}


@cache
def _fields(kind: str) -> dict[str, str]:
    """Return the fields of a class by their names in JSON. The module is read, not imported: it needs much else."""
    spec = find_spec("kserve")
    if spec is None or spec.origin is None:
        pytest.skip("kserve is not installed: make .venv/.dev")
    words = re.match(r"(V\d+[a-z]*\d*)(.*)", kind)
    assert words is not None
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", words[2]).lower()
    tree = ast.parse((Path(spec.origin).parent / "models" / f"{words[1].lower()}_{snake}.py").read_text())
    (found,) = (each for each in tree.body if isinstance(each, ast.ClassDef))
    tables: dict[str, dict[str, str]] = {
        ast.unparse(each.targets[0]): ast.literal_eval(each.value)
        for each in found.body
        if isinstance(each, ast.Assign)
    }
    return {tables["attribute_map"][name]: kind for name, kind in tables["openapi_types"].items()}


def test_runtimes_differ_in_their_kind_only() -> None:
    cluster, one = (
        yaml.safe_load((DEPLOY / "kserve" / name).read_text())
        for name in ("clusterservingruntime.yaml", "servingruntime.yaml")
    )
    assert {**cluster, "kind": ""} == {**one, "kind": ""}


def test_pods_of_the_image_have_its_user_and_its_health_check() -> None:
    image = (DEPLOY.parent / "packaging/container/Dockerfile").read_text()
    check = json.loads(image.partition("\n  CMD ")[2].partition("\n")[0])
    (user,) = re.findall(r"useradd --uid (\d+)", image)
    for name in ("daemonset", "nvidia"):
        *_, daemons = yaml.safe_load_all((DEPLOY / "k3s" / f"{name}.yaml").read_text())
        pod = daemons["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == int(user)
        (container,) = pod["containers"]
        assert [container[probe]["exec"]["command"] for probe in ("startupProbe", "livenessProbe")] == [check, check]


def test_checks_find_wrong_manifests() -> None:
    """A schema that accepts everything proves nothing."""
    runtime = yaml.safe_load((DEPLOY / "kserve" / "servingruntime.yaml").read_text())
    runtime["spec"]["container"] = []
    with pytest.raises(AssertionError, match="container is unknown"):
        check_kserve(runtime, "V1alpha1ServingRuntime", "")
    daemons = next(yaml.safe_load_all((DEPLOY / "k3s" / "nvidia.yaml").read_text()))
    daemons["spec"]["template"]["spec"]["hostNetwrk"] = True
    with pytest.raises(Exception, match="hostNetwrk"):
        check_kubernetes(daemons)
