"""The wait until a model serves, with a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edged.cli import settling

OTHER_BUILD_S, OWN_BUILD_S = 100.0, 130.0  # when each build ends


class Box:
    """A daemon whose reference serves the model. `builds`: another model is built first, then this one."""

    def __init__(self, builds: bool) -> None:
        self.now, self.builds = 0.0, builds

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def engines(self, name: str) -> list[SimpleNamespace]:
        state, reference = "absent", "serving"
        if self.builds and self.now >= OTHER_BUILD_S:
            state = "building"
        if self.builds and self.now >= OWN_BUILD_S:
            state, reference = "serving", "ready"
        return [self._engine("onnxruntime", reference), self._engine("openvino", state)]

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(building=("another model",) if self.builds and self.now < OTHER_BUILD_S else ())

    def _engine(self, backend: str, state: str) -> SimpleNamespace:
        return SimpleNamespace(
            backend=backend, state=state, precision="fp32", latency_ms=None, speed=None, is_built_elsewhere=False
        )


@pytest.mark.parametrize(("builds", "backend", "latest_s"), [(True, "openvino", 140.0), (False, "onnxruntime", 10.0)])
def test_missing_engine_is_awaited_while_another_model_is_built(
    monkeypatch: pytest.MonkeyPatch, builds: bool, backend: str, latest_s: float
) -> None:
    box: Any = Box(builds)
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: box.now, sleep=box.sleep))
    assert settling.wait_until_served(box, "doors").backend == backend
    assert box.now <= latest_s


def test_model_that_serves_at_the_time_limit_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    box: Any = Box(builds=True)
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: box.now, sleep=box.sleep))
    monkeypatch.setattr(settling, "_WAIT_S", 50.0)
    assert settling.wait_until_served(box, "doors").backend == "onnxruntime"
