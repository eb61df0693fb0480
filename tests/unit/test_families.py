"""Recognition with families of other packages, in real children: their requests, the cached answers, and failures."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from edged.config.child_limits import Limits
from edged.confinement import confine
from edged.engines import families as module
from edged.engines.families import Families
from edged.errors import ConfigError, FamilyFailed
from edged.family_packages import offers
from edged.jobs.inspect import inspect
from edged.models.inspection import Inspection
from tests import models
from tests.family_package import describe, environment, install, save_model

NAME = "car-plates"
QUICK = Limits(seconds=2.0, memory_mb=2048, stall_seconds=2.0)  # for a child that hangs; others may start slowly
PATIENT = Limits(seconds=30.0, memory_mb=2048, stall_seconds=30.0)
PACKAGE = "family car-plates of package edged-family-car-plates 0.1.0"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of modules, of this process and of its children."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", environment(folder)["PYTHONPATH"])
    return folder


@pytest.fixture
def inspection(tmp_path: Path) -> Inspection:
    return inspect(save_model(tmp_path / "gate.onnx"))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs of the children that were started."""
    started: list[Any] = []
    run = module.run

    async def counted(job: Any, *arguments: Any, **named: Any) -> Any:
        started.append(job)
        return await run(job, *arguments, **named)

    monkeypatch.setattr(module, "run", counted)
    return started


async def test_recognise_without_allowed_families_asks_no_child(
    site: Path, tmp_path: Path, inspection: Inspection, children: list[Any]
) -> None:
    install(site, NAME)
    families = Families(tmp_path)
    for settings in ({}, {"family": "raw"}, {"family": "yolov5"}, {"family": "unknown"}):
        assert await families.recognise(inspection, settings) is None
    assert not await families.look()
    assert children == []


async def test_recognise_family_that_is_not_allowed_is_raw_and_says_how_to_allow_it(
    site: Path, tmp_path: Path, inspection: Inspection, children: list[Any]
) -> None:
    install(site, NAME, code="raise SystemExit")
    found = await Families(tmp_path, ["other"]).recognise(inspection, {"family": NAME})
    assert found is not None
    assert (found.family, found.package, found.is_set) == (None, None, False)
    assert found.preprocess is not None
    assert PACKAGE in found.reason
    assert f'add "{NAME}" to families.allow' in found.reason
    assert children == []


@pytest.mark.parametrize("settings", [{}, {"family": NAME}, {"family": NAME, "thresholds.score": "0.5"}])
async def test_recognise_allowed_family_asks_a_child_once(
    site: Path, tmp_path: Path, inspection: Inspection, children: list[Any], settings: dict[str, str]
) -> None:
    module_file = install(site, NAME)
    for _ in range(2):
        found = await Families(tmp_path, [NAME]).recognise(inspection, settings)
        assert found is not None
        assert found.package == offers()[0].package
        assert (found.family, found.is_set) == (NAME, "family" in settings)
        assert found.thresholds.score == float(settings.get("thresholds.score", 0.3))
        assert len(children) == 1
    module_file.write_text(module_file.read_text() + "\n# changed\n")
    again = await Families(tmp_path, [NAME]).recognise(inspection, settings)
    assert again is not None
    assert again.package != found.package
    assert len(children) == 2
    Families(tmp_path).forget(inspection.digest)
    assert list(tmp_path.glob("recognitions/*")) == []


async def test_recognise_model_of_edged_or_without_pictures_asks_no_child(
    site: Path, tmp_path: Path, children: list[Any]
) -> None:
    install(site, NAME)
    families = Families(tmp_path, [NAME])
    tensors = models.save(models.parse("(float[1,4] x) => (float[1,4] y) { y = Identity(x) }"), tmp_path / "t.onnx")
    assert await families.recognise(inspect(tensors), {}) is None
    known = save_model(tmp_path / "known.onnx")
    assert await families.recognise(inspect(known), {"family": "classification"}) is None
    assert children == []


async def test_recognise_family_that_does_not_fit_says_what_it_needs(site: Path, tmp_path: Path) -> None:
    install(site, NAME)
    other = inspect(save_model(tmp_path / "other.onnx", ("a", "b", "c")))
    families = Families(tmp_path, [NAME])
    with pytest.raises(ConfigError, match=f"family={NAME} needs tensors like centres"):
        await families.recognise(other, {"family": NAME})
    found = await families.recognise(other, {})
    assert found is not None
    assert found.family is None


@pytest.mark.parametrize(
    ("allowed", "words"),
    [(NAME, "no package offers family"), ("doubled", "also offers this family"), ("yolov5", "edged's own family")],
)
async def test_recognise_family_that_cannot_be_used_says_why(
    site: Path, tmp_path: Path, inspection: Inspection, allowed: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    describe(site, "one", entry="doubled")
    describe(site, "two", entry="doubled")
    families = Families(tmp_path, [allowed])
    if allowed != "yolov5":
        with pytest.raises(ConfigError, match=words):
            await families.recognise(inspection, {"family": allowed})
    assert await families.recognise(inspection, {}) is None
    with caplog.at_level(logging.WARNING):
        assert not await families.look()
    assert words in caplog.text


_ENDLESS, _ASLEEP, _SOCKET = "while True: pass", "import time; time.sleep(100)", "import socket; socket.socket()"
_FAILING = {
    "1 / 0": "ZeroDivisionError",
    "import os; os._exit(9)": "ended with status 9",
    _ENDLESS: "took longer than 2 s",
    _SOCKET: "PermissionError",
    "@CLASS@.contract = 2": "update edged",
}
_REFUSES_SOCKETS = pytest.mark.skipif("seccomp" in confine.lacking(), reason="this kernel lacks seccomp")
_CODES = [pytest.param(code, marks=_REFUSES_SOCKETS if code == _SOCKET else ()) for code in _FAILING]


def limits(code: str) -> Limits:
    return QUICK if code in (_ENDLESS, _ASLEEP) else PATIENT


@pytest.mark.parametrize("code", _CODES)
async def test_recognise_code_that_fails_refuses_a_model_that_names_it(
    site: Path, tmp_path: Path, inspection: Inspection, code: str
) -> None:
    install(site, NAME, code=code)
    with pytest.raises((FamilyFailed, module.ChildLost), match=PACKAGE) as caught:
        await Families(tmp_path, [NAME], limits(code)).recognise(inspection, {"family": NAME})
    assert _FAILING[code] in str(caught.value)


@pytest.mark.parametrize("code", _CODES)
async def test_recognise_code_that_fails_claims_no_other_model(
    site: Path, tmp_path: Path, inspection: Inspection, code: str
) -> None:
    install(site, NAME, code=code)
    found = await Families(tmp_path, [NAME], limits(code)).recognise(inspection, {})
    assert found is not None
    assert found.family is None
    assert PACKAGE in found.reason
    assert _FAILING[code] in found.reason
    assert list(tmp_path.glob("recognitions/*")) == [], "it may work after another package is installed"


@pytest.mark.parametrize("code", ["1 / 0", "import os; os._exit(9)", _ASLEEP])
async def test_recognise_one_failing_family_leaves_the_others(
    site: Path, tmp_path: Path, inspection: Inspection, code: str
) -> None:
    install(site, "broken", code=code)
    install(site, NAME)
    found = await Families(tmp_path, ["broken", NAME], limits(code)).recognise(inspection, {})
    assert found is not None
    assert found.family == NAME


async def test_load_says_for_each_family_why_it_cannot_be_used(site: Path, tmp_path: Path) -> None:
    install(site, "broken", code="1 / 0")
    install(site, "leaves", code="import os; os._exit(9)")
    install(site, NAME)
    found = dict(zip(("broken", NAME, "leaves"), await Families(tmp_path).load(offers()), strict=True))
    assert found[NAME] == ""
    assert "ZeroDivisionError" in found["broken"]
    assert "ended with status 9" in found["leaves"]


async def test_load_starts_a_child_for_each_family_that_ends_one_and_one_for_the_others(
    site: Path, tmp_path: Path, children: list[Any]
) -> None:
    for name in ("one", "two", NAME, "other"):
        install(site, name, code="import os; os._exit(9)" if name in ("one", "two") else "")
    found = dict(zip((NAME, "one", "other", "two"), await Families(tmp_path).load(offers()), strict=True))
    assert (found[NAME], found["other"]) == ("", "")
    assert "ended with status 9" in found["one"]
    assert "family two of package" in found["two"]
    assert len(children) == 3


async def test_look_reports_changes_of_packages_and_of_the_list(site: Path, tmp_path: Path) -> None:
    module_file = install(site, NAME)
    families = Families(tmp_path, [NAME])
    assert [await families.look(), await families.look()] == [False, False]
    module_file.write_text(module_file.read_text() + "\n# changed\n")
    assert [await families.look(), await families.look()] == [True, False]
    families.allow([])
    assert [await families.look(), await families.look()] == [True, False]
    families.allow([NAME])
    families.allow([NAME])
    assert [await families.look(), await families.look()] == [True, False]
    assert families.folders() == (str(module_file.parent),)
