"""The kinds of changes that can be rolled out, and how each is undone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from edged.cli.rollout.plan import Figures
from edged.cli.rollout.record import Order
from edged.cli.settling import wait_until_served
from edged.errors import InvalidInput, ModelNotFound, Refused
from edged.models.identity import model_digest

if TYPE_CHECKING:
    from edged.api_types import ModelInfo
    from edged.client.client import Client

Had = Mapping[str, str]  # the state of a box before the change
_READ_S = 60.0  # time limit for a daemon to read a restored model
_CUT = re.compile(r"\.\.\. \(\d+ characters\)$")  # the end of a value that the daemon has shortened


class Change(Protocol):
    """A change that a rollout makes on each box. Every method can be called again after an interruption."""

    def plan(self) -> str:
        """Return what the change does on each box, as text that can follow a colon."""

    def had(self, client: Client) -> dict[str, str]:
        """Return the state of a box before the change, for `undo`. Raises EdgedError if the change is not possible on
        this box."""

    def apply(self, client: Client, had: Had) -> None:
        """Change the box, and wait until it serves. Raises EdgedError if that fails."""

    def undo(self, client: Client, had: Had) -> str:
        """Undo the change on a box, and return a line about the result. Raises EdgedError if that is not possible."""


class AddModel:
    """The change that adds a model file, and replaces a model of this name if there is one."""

    def __init__(self, order: Order) -> None:
        self._order = order
        if order.file and digest_of(Path(order.file)) != order.digest:
            raise Refused(f"{order.file} has changed since the rollout began; begin a new rollout")

    def plan(self) -> str:
        return f"add {self._order.file} as model {self._order.model}, and wait for its verified engine"

    def had(self, client: Client) -> dict[str, str]:
        return _identity(_find(client, self._order.model))

    def apply(self, client: Client, had: Had) -> None:
        from edged.client.upload import Package

        order, now = self._order, _identity(_find(client, self._order.model))
        if now == had or now.get("digest") != order.digest:  # otherwise a run before an interruption has uploaded it
            client.upload(Package.of(order.model, order.file, order.settings, replace=True))
        wait_until_served(client, order.model)

    def undo(self, client: Client, had: Had) -> str:
        now = _identity(_find(client, self._order.model))
        if now == had:
            return "nothing had changed"
        if not now:
            model = self._order.model
            raise Refused(f"another client has removed the model; to restore it: edged models restore {model}")
        if now["digest"] not in ("", self._order.digest):
            raise Refused("another client has replaced the model meanwhile; the other client's model stays")
        if not had:
            client.remove_model(self._order.model)
            return f"model {self._order.model} is removed"
        client.restore_model(self._order.model)
        end = time.monotonic() + _READ_S
        while (now := _identity(_find(client, self._order.model))) != had:  # until the daemon has read the old model
            if time.monotonic() > end:
                raise Refused(
                    "the restored model differs from the previous one in its digest"
                    f" ({now.get('digest', '')[:12] or 'none'}, previously {had.get('digest', '')[:12] or 'none'}) or"
                    f" in its settings; see: edged models show {self._order.model}"
                )
            time.sleep(0.5)
        wait_until_served(client, self._order.model)
        return "the previous model serves again"


class SetModel:
    """The change of a model's settings."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def plan(self) -> str:
        changes = ", ".join(f"{key} = {value or 'none'}" for key, value in self._order.settings.items())
        return f"set {changes} of model {self._order.model}"

    def had(self, client: Client) -> dict[str, str]:
        settings = _require(client, self._order.model).settings
        had = {key: settings.get(key, "") for key in self._order.settings}
        if long := next((key for key, value in had.items() if _CUT.search(value)), ""):
            raise Refused(
                f"a rollout cannot change setting {long!r}, because its present value is too long to be restored;"
                f" change it on each box with: edged models set {self._order.model}"
            )
        return had

    def apply(self, client: Client, had: Had) -> None:
        client.set_model(self._order.model, self._order.settings)
        wait_until_served(client, self._order.model)

    def undo(self, client: Client, had: Had) -> str:
        client.set_model(self._order.model, had)
        wait_until_served(client, self._order.model)
        return "the previous settings are in force again"


class Rebuild:
    """The change that builds engines again, for example after an update of drivers."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def plan(self) -> str:
        which = "all engines" if self._order.force else "missing engines"
        return f"build {which} of model {self._order.model} again"

    def had(self, client: Client) -> dict[str, str]:
        _require(client, self._order.model)
        return {}

    def apply(self, client: Client, had: Had) -> None:
        last = {each.key: each for each in client.rebuild(self._order.model, force=self._order.force, follow=True)}
        if failed := [each for each in last.values() if each.done and not each.succeeded]:
            raise Refused(
                f"engine {failed[0].backend} {failed[0].precision} was not built: {failed[0].reason or failed[0].state}"
            )

    def undo(self, client: Client, had: Had) -> str:
        raise Refused(
            "a rebuild cannot be undone: a new engine is verified and stays; if the build failed, the previous engine"
            " stays"
        )


class Reload:
    """The change that reads the configuration file again. The new file must already be on the boxes."""

    def plan(self) -> str:
        return "reload the configuration file, which must already be on the box"

    def had(self, client: Client) -> dict[str, str]:
        return {}

    def apply(self, client: Client, had: Had) -> None:
        if wrong := [key for key in client.reload() if key.problem]:
            raise Refused(f"{wrong[0].key} is not in force: {wrong[0].problem}")

    def undo(self, client: Client, had: Had) -> str:
        raise Refused("a reload cannot be undone from here; put the previous file back on the box, then: edged reload")


KINDS: Mapping[str, Callable[[Order], Change]] = {
    "models": AddModel,
    "settings": SetModel,
    "rebuild": Rebuild,
    "reload": lambda order: Reload(),
}


def of(order: Order, *, only_undo: bool = False) -> Change:
    """Return the change that an order describes. Raises InvalidInput or Refused if this change is not possible. With
    `only_undo` the model's file may be missing or changed."""
    if order.kind not in KINDS:
        raise InvalidInput(
            f"this version of edged does not know the change {order.kind[:40]!r}; use the version that began the"
            " rollout"
        )
    return KINDS[order.kind](msgspec.structs.replace(order, file="") if only_undo else order)


def measure(client: Client, model: str) -> Figures:
    """Return the figures of a model on a box. If `model` is empty, return the figures of all models together. In that
    case `engine` and `backend` are empty, and `infer_ms` is None."""
    load = client.load()
    own = [each for each in load.models if model in ("", each.name)]
    ages = [each.age_p99_ms for each in load.cameras if model in ("", each.model) and each.age_p99_ms is not None]
    alarms = [each for each in load.status.alarms if not model or each.model in ("", model)]
    first = own[0] if own and model else None
    return Figures(
        engine=first.engine if first is not None else "",
        backend=first.backend if first is not None else "",
        infer_ms=first.infer_ms if first is not None else None,
        p99_ms=max(ages, default=None),
        failed=sum(each.failed for each in own),
        alarms={f"{each.kind} {each.model} {each.camera}": f"{each.kind}: {each.message}" for each in alarms},
    )


def digest_of(file: Path) -> str:
    """Return the digest of a model with its external data, as daemons compute it. Raises ModelRefused if the file is
    not an ONNX model."""
    from edged.client.upload import Package

    package = Package.of("model", file, None)
    return model_digest(file, [name for name, _ in package.files[1:]])


def _identity(model: ModelInfo | None) -> dict[str, str]:
    """Return the digest and the settings of a model. They describe the model's files on the box, even if an older
    version still serves. Return an empty dictionary if there is no model."""
    if model is None:
        return {}
    return {"digest": model.digest, "settings": msgspec.json.encode(model.settings, order="sorted").decode()}


def _find(client: Client, model: str) -> ModelInfo | None:
    return next((each for each in client.models() if each.name == model), None)


def _require(client: Client, model: str) -> ModelInfo:
    found = _find(client, model)
    if found is None:
        raise ModelNotFound(f"no model {model!r}; see: edged models list")
    return found
