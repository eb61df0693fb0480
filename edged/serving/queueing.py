"""How a model's tensor requests wait, and how they are put together. Pure."""

from __future__ import annotations

import msgspec

from edged.serving.schedule import Batching


class QueuePolicy(msgspec.Struct, frozen=True):
    """How requests wait. size: the most that do, 0 for a sensible number. timeout: seconds after which one is too late,
    0 for never; `allow_override` lets a request's own `timeout` say less. What is too late is refused, or, with
    `delay`, goes when there is nothing else to do."""

    size: int = 0
    timeout: float = 0.0
    allow_override: bool = False
    delay: bool = False


class TensorBatching(msgspec.Struct, frozen=True):
    """How a model's tensor requests are put together, and how they wait.

    Levels of priority go from 1, which goes first, to `levels`; 0 levels means that there is one. A request that names
    none has `default_level`. `policies` are by level, where they differ from `policy`.
    """

    batching: Batching = Batching()
    policy: QueuePolicy = QueuePolicy()
    levels: int = 0
    default_level: int = 0
    policies: dict[int, QueuePolicy] = {}

    def level(self, wanted: int) -> int:
        """The level of a request that asks for one; one that does not exist is the default."""
        return wanted if 1 <= wanted <= self.levels else self.default_level

    def of(self, level: int) -> QueuePolicy:
        return self.policies.get(level, self.policy)
