"""Options of a TensorRT build: defaults from the device, settings, text, and reduced effort."""

from __future__ import annotations

import pytest

from edged.backends.trt.options import Options, check, of
from edged.errors import ConfigError


@pytest.mark.parametrize(
    ("memory_mb", "workspace_mb"),
    [(None, 1024), (3900, 512), (7620, 1024), (7790, 1024), (15523, 2048), (64000, 8192), (143771, 8192), (10, 16)],
)
def test_of_workspace_is_a_rounded_share_of_the_memory(memory_mb: int | None, workspace_mb: int) -> None:
    assert of({}, memory_mb) == Options(workspace_mb)


def test_of_settings_replace_defaults() -> None:
    settings = {
        "tensorrt.workspace_mb": "300",
        "tensorrt.builder_level": "5",
        "tensorrt.dla_core": "1",
        "tensorrt.hardware_compatible": "yes",
        "tensorrt.version_compatible": "true",
        "family": "raw",
    }
    check(settings)
    found = of(settings, 8000)
    assert found == Options(300, 5, 1, True, True)
    assert str(found) == "dla_core=1;hardware_compatible;version_compatible;workspace_mb=300"
    assert found.optimization == "5"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tensorrt.workspace": "1"}, "did you mean tensorrt.workspace_mb"),
        ({"tensorrt.": "1"}, "unknown setting"),
        ({"tensorrt.workspace_mb": "0"}, "not a whole number"),
        ({"tensorrt.workspace_mb": "-5"}, "not a whole number"),
        ({"tensorrt.workspace_mb": "9" * 400}, "not a whole number"),
        ({"tensorrt.builder_level": "6"}, "not a whole number in 0..5"),
        ({"tensorrt.builder_level": "high"}, "not a whole number"),
        ({"tensorrt.dla_core": "none"}, "not a whole number"),
        ({"tensorrt.dla_core": ""}, "not a whole number"),
        ({"tensorrt.version_compatible": "perhaps"}, "must be true or false"),
    ],
)
def test_check_invalid_setting_is_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check(settings)


def test_of_workspace_larger_than_the_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than the 8000 MiB that the device has"):
        of({"tensorrt.workspace_mb": "8001"}, 8000)


@pytest.mark.parametrize(
    "options",
    [
        Options(64),
        Options(2048, 0),
        Options(16, 5, 0),
        Options(512, 3, None, True, False),
        Options(16, 2, 7, True, True),
    ],
)
def test_parse_returns_the_options_of_a_recipe(options: Options) -> None:
    assert Options.parse(options.optimization, str(options)) == options


def test_parse_empty_recipe_has_defaults() -> None:
    assert Options.parse("all", "") == of({}, None)


@pytest.mark.parametrize(
    "text",
    ["workspace_mb", "workspace_mb=1;", ";", "x=1", "workspace_mb=064", "workspace_mb=64;dla_core=0", "=", "a=b=c"],
)
def test_parse_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Options.parse("3", text)


def test_eased_lowers_level_and_workspace() -> None:
    options = Options(1024, 3, 0, True, True)
    assert options.eased("full") == options
    assert options.eased("reduced") == Options(512, 1, 0, True, True)
    assert options.eased("least") == Options(256, 0, 0, True, True)
    assert Options(16, 0).eased("least") == Options(16, 0)
