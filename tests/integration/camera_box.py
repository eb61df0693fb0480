"""A daemon with configured cameras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edged.api_types import CameraInfo
from edged.client import Client
from tests.integration.daemon import Daemon, wait_for

if TYPE_CHECKING:
    from typing_extensions import Self


class CameraBox(Daemon):
    """The daemon, with a client `api` while it is `running`."""

    api: Client

    @contextmanager
    def running(self) -> Iterator[Self]:
        with self, self.client() as self.api:
            yield self

    def camera(self, name: str) -> CameraInfo:
        return next(each for each in self.api.cameras() if each.camera == name)

    def alarms(self, name: str) -> list[str]:
        return [alarm.kind for alarm in self.api.status().alarms if alarm.camera == name]

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        wait_for("the cameras are as expected; see the log", condition, seconds)

    def reaches(self, name: str, state: str) -> CameraInfo:
        self.until(lambda: any((each.camera, each.state) == (name, state) for each in self.api.cameras()))
        return self.camera(name)
