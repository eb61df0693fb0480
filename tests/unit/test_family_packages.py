"""Packages with model families: what is found without running their code, and who may run it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import edged
from edged import family_packages
from edged.errors import FamilyFailed, Superseded, Unsupported
from edged.family_packages import Offer, Package, offers
from tests.family_package import describe, install

NAME = "car-plates"
MODULE = "edged_family_car_plates"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of modules."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("edged_family_")]:
        del sys.modules[name]


@pytest.fixture
def _permitted() -> Iterator[None]:
    family_packages.permit()
    yield
    family_packages.permit(False)


def offer(name: str = NAME) -> Offer:
    return next(each for each in offers() if each.family == name)


def test_offers_names_family_package_and_class_without_running_code(site: Path) -> None:
    install(site, NAME, code="raise SystemExit")
    found = offer()
    assert (found.family, found.package.name, found.package.version) == (NAME, "edged-family-car-plates", "0.1.0")
    assert (found.target, found.problem) == (f"{MODULE}:CarPlates", "")
    assert MODULE not in sys.modules
    assert family_packages.folders(NAME) == (str(site / MODULE),)


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("Car Plates", f"{MODULE}:CarPlates", "invalid family name"),
        ("x" * 61, f"{MODULE}:CarPlates", "invalid family name"),
        (NAME, MODULE, "MODULE:CLASS"),
        (NAME, f"{MODULE}:", "MODULE:CLASS"),
        (NAME, f"{MODULE}:A.b()", "MODULE:CLASS"),
    ],
)
def test_offers_invalid_entry_point_has_a_problem(site: Path, name: str, target: str, words: str) -> None:
    describe(site, NAME, entry=name, target=target)
    (found,) = offers()
    assert words in found.problem


def test_offers_same_family_of_two_packages_has_a_problem(site: Path) -> None:
    describe(site, NAME)
    describe(site, "other", entry=NAME, target="edged_family_other:Other")
    one, other = offers()
    assert "edged-family-other 0.1.0" in one.problem
    assert "edged-family-car-plates 0.1.0" in other.problem


@pytest.mark.parametrize(
    ("file", "content"),
    [("entry_points.txt", b"[edged.families]\nno value"), ("entry_points.txt", b"\xff"), ("METADATA", b"\xff")],
)
def test_offers_damaged_metadata_of_another_package_hides_none(site: Path, file: str, content: bytes) -> None:
    install(site, NAME)
    describe(site, "other")
    (site / "edged_family_other-0.1.0.dist-info" / file).write_bytes(content)
    assert offer().package.version == "0.1.0"
    assert not offer().problem


def test_offers_damaged_metadata_of_another_package_keeps_the_first_on_the_path(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.1.0", "0.2.0"):
        (site / version).mkdir()
        monkeypatch.syspath_prepend(site / version)
        describe(site / version, NAME, version)
    describe(site, "other")
    (site / "edged_family_other-0.1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff")
    (found,) = offers()
    assert (found.package.version, found.problem) == ("0.2.0", "")


def test_offers_name_of_a_package_is_printable(site: Path) -> None:
    describe(site, NAME)
    (site / f"{MODULE}-0.1.0.dist-info" / "METADATA").write_text("Name: red\x1b[31m\nVersion: 1\u202e\n")
    assert str(offer().package).isprintable()


def test_package_digest_depends_on_content_version_and_target(site: Path) -> None:
    module = install(site, NAME)
    found = [offer().package]
    module.write_text(module.read_text() + "\n# changed\n")
    found.append(offer().package)
    (module.parent / "labels.txt").write_text("cat")
    found.append(offer().package)
    describe(site, NAME, target=f"{MODULE}:Other")
    found.append(offer().package)
    (module.parent / "__pycache__").mkdir()
    (module.parent / "__pycache__" / "x.pyc").write_text("x")
    assert len({package.digest for package in found}) == 4
    assert offer().package == found[-1]


def test_package_of_a_missing_module_is_offered(site: Path) -> None:
    describe(site, NAME)
    assert offer().package.version == "0.1.0"
    assert family_packages.folders(NAME) == ()
    assert family_packages.folders("unknown") == ()


def test_load_without_permission_is_refused(site: Path) -> None:
    install(site, NAME, code="raise SystemExit")
    with pytest.raises(Unsupported):
        family_packages.load(NAME, offer().package)
    assert MODULE not in sys.modules


@pytest.mark.usefixtures("_permitted")
def test_load_returns_the_class(site: Path) -> None:
    install(site, NAME)
    found = family_packages.load(NAME, offer().package)
    assert isinstance(found, type)
    assert (found.__module__, found.__name__) == (MODULE, "CarPlates")


@pytest.mark.usefixtures("_permitted")
def test_load_changed_package_is_superseded(site: Path) -> None:
    module = install(site, "changes")
    before = offer("changes").package
    module.write_text(module.read_text() + "\n# changed\n")
    with pytest.raises(Superseded, match="changed on disk"):
        family_packages.load("changes", before)
    with pytest.raises(Superseded, match="not installed"):
        family_packages.load("other", before)
    family_packages.load("changes", offer("changes").package)


@pytest.mark.usefixtures("_permitted")
def test_load_package_that_changed_after_its_import_is_superseded(site: Path) -> None:
    module = install(site, "twice")
    family_packages.load("twice", offer("twice").package)
    module.write_text(module.read_text() + "\n# changed\n")
    with pytest.raises(Superseded, match="after this process had imported the package"):
        family_packages.load("twice", offer("twice").package)


@pytest.mark.usefixtures("_permitted")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException('panicked')", "panicked"),
        ("del @CLASS@", "AttributeError"),
        ("@CLASS@ = (", "SyntaxError"),
    ],
)
def test_load_module_that_fails_names_the_package(site: Path, code: str, words: str) -> None:
    install(site, NAME, code=code)
    with pytest.raises(FamilyFailed) as caught:
        family_packages.load(NAME, offer().package)
    assert f"family {NAME} of package edged-family-car-plates 0.1.0" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.family == NAME


def test_failed_long_text_is_cut() -> None:
    error = family_packages.failed(NAME, Package("p", "1", ""), ValueError("x" * 5000), "decode")
    assert len(str(error)) < 1100


def test_permit_is_called_by_hosts_children_and_users_programs_only() -> None:
    root = Path(edged.__file__).parent
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "family_packages.permit"
    }
    assert callers == {"host/main.py", "jobs/main.py", "library.py"}


def test_package_survives_encoding() -> None:
    package = Package("p", "1", "abc")
    assert msgspec.json.decode(msgspec.json.encode(package), type=Package) == package
