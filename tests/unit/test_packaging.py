"""Packaging, without a build: control data, maintainer scripts, manual pages, and the files of the container."""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from edged.config import load
from edged.store.state_format import FORMAT

PACKAGING = Path(__file__).parents[2] / "packaging"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "launcher")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PACKAGING / "deb")
    return importlib.import_module("build")


@pytest.fixture
def manpages(build: ModuleType) -> ModuleType:
    return importlib.import_module("manpages")


def fields(text: str) -> dict[str, str]:
    """Return the fields of a control file with one paragraph."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(": ")
        if line.startswith(" "):
            found["Description"] += f"\n{line}"
        elif colon:
            found[name] = value
    return found


def test_control_names_python_architecture_and_flavour(build: ModuleType) -> None:
    target = build.Target("0.1.0", "arm64", "3.10", ("media", "jetson"), "3")
    assert target.file_name == "edged_0.1.0+py310.jetson.media-3_arm64.deb"
    control = fields(build.control(target, 2000))
    assert control["Package"] == "edged"
    assert control["Version"] == "0.1.0+py310.jetson.media-3"
    assert (control["Architecture"], control["Installed-Size"]) == ("arm64", "2")
    assert control["Pre-Depends"] == "python3.10"
    assert control["Conflicts"] == control["Replaces"] == "edged-refresh"
    assert "nvidia-jetpack" in control["Suggests"]
    assert all(line[0] == " " and len(line) <= 81 for line in control["Description"].splitlines()[1:])


def test_version_order_is_that_of_dpkg(build: ModuleType) -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed")
    versions = [
        build.Target(each, "amd64", "3.11").package_version for each in ("1.0.0a1", "1.0.0rc1", "1.0.0", "1.0.1")
    ]
    for older, newer in itertools.pairwise(versions):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0


def test_constraints_jetson_leaves_cuda_to_the_extra(build: ModuleType) -> None:
    base = build.constraints(build.Target("0.1.0", "arm64", "3.10"))
    jetson = build.constraints(build.Target("0.1.0", "arm64", "3.10", ("jetson",)))
    assert "\ncuda-bindings==12.9" not in base
    assert re.findall(r"^cuda-bindings==(\d+)", jetson, re.MULTILINE) == ["12", "13"]
    assert all("\ntrackers==" in text for text in (base, jetson))


def test_build_with_an_extra_that_has_no_wheel_is_refused(build: ModuleType) -> None:
    with pytest.raises(SystemExit, match="EXTRAS=jetson"):
        build.main(["--arch", "arm64", "--extras", "tensorrt"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_valid_shell_for_a_package(build: ModuleType, name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(build.script(name, build.Target("0.1.0", "amd64", "3.11"), FORMAT))
    assert "@" not in re.sub(r'"\$@"', "", script.read_text())
    subprocess.run(["sh", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-s", "sh", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_pages_cover_every_command_and_its_options(manpages: ModuleType) -> None:
    pages = manpages.pages("0.1.0", 86400)
    assert {"edged", "edged-models", "edged-models-add", "edged-serve"} <= pages.keys()
    page = pages["edged-models-add"]
    assert page.startswith('.TH "EDGED-MODELS-ADD" 1 "1970-01-02" "edged 0.1.0" "edged"\n')
    for text in ("\\-\\-samples DIR_OR_FILE", ".SH EXAMPLE\n", "More: docs/models.md", ".BR edged\\-models (1)"):
        assert text in page
    assert ".BR edged\\-models\\-add (1)" in pages["edged-models"]
    assert pages == manpages.pages("0.1.0", 86400)


def test_pages_are_clean_roff(manpages: ModuleType, tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name, page in manpages.pages("0.1.0", 0).items():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-wall", "-z"], input=page, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), name


def test_escape_protects_characters_of_roff(manpages: ModuleType) -> None:
    assert manpages.escape(".5\n'x' C:\\dir --on") == "\\&.5\n\\&'x' C:\\edir \\-\\-on"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_valid_for_its_shell(manpages: ModuleType, shell: str, tmp_path: Path) -> None:
    (text,) = [text for path, text in manpages.completions().items() if path.startswith(shell)]
    assert "_EDGED_COMPLETE" in text
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        subprocess.run([shell, "-n", str(script)], check=True)


def test_compose_file_starts_frigate_after_edged_with_a_read_only_root() -> None:
    compose = yaml.safe_load((PACKAGING / "container/compose.yaml").read_text())
    services = compose["services"]
    assert services["edged"]["read_only"] is True
    assert services["frigate"]["depends_on"]["edged"]["condition"] == "service_healthy"
    named = {mount.split(":")[0] for service in services.values() for mount in service["volumes"] if mount[0] != "."}
    assert named == compose["volumes"].keys()
    for service in services.values():
        for mount in service["volumes"]:
            assert mount[0] != "." or (PACKAGING / "container" / mount.split(":")[0]).is_file()
    frigate = yaml.safe_load((PACKAGING / "container/frigate.yml").read_text())
    config = load(PACKAGING / "container/edged.toml")
    assert config.frigate is not None
    assert frigate["detectors"]["edged"]["endpoint"] == config.frigate.endpoint
