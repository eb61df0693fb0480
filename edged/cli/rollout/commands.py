"""`edged fleet rollout`: the commands that begin, continue and show rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edged import formatting
from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.rollout import changes, plan, record, run
from edged.cli.rollout.record import BoxRecord, Order, Record
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.client import address
from edged.errors import EdgedError, InvalidInput, Refused
from edged.models.entries import check_name

Canary = Annotated[int, typer.Option("--canary", min=1, metavar="N", help="Boxes in the first wave.")]
Then = Annotated[
    str, typer.Option("--then", metavar="N|N%", help="Boxes in each further wave: a number, or a share of all.")
]
AbortOn = Annotated[
    str,
    typer.Option(
        "--abort-on",
        metavar="RULES",
        help="Stop the rollout, and undo it, on: alarms (new ones), failures (of requests), p99 > 1.5x (age of"
        " camera frames), infer > 1.5x (median inference time); joined by or.",
    ),
]
Watch = Annotated[float, typer.Option("--watch", min=0, metavar="SECONDS", help="How long each wave is watched.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan, see whether all boxes answer, and change nothing.")
]
_CANARY, _THEN, _ABORT_ON, _WATCH_S = 1, "25%", "alarms or failures", 60.0


def models(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file.")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the model; repeatable.")
    ] = None,
    canary: Canary = _CANARY,
    then: Then = _THEN,
    abort_on: AbortOn = _ABORT_ON,
    watch: Watch = _WATCH_S,
    dry_run: DryRun = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Add or replace a model on many boxes, in waves.

    Each box verifies the new engine before the engine serves. Then the box's figures are compared with its figures
    before the change. If a box fails or breaks a rule, all changed boxes get their previous model back.
    """
    from edged.models.settings import parse_assignments

    check_name(name)
    if not file.is_file():
        raise InvalidInput(f"{file} is not a file; name the .onnx file")
    place = file.absolute()
    order = Order("models", name, str(place), changes.digest_of(place), parse_assignments(setting or []))
    _begin(order, canary, then, abort_on, watch, dry_run, targets, json)


def settings(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")],
    setting: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="As for edged models set.")],
    canary: Canary = _CANARY,
    then: Then = _THEN,
    abort_on: AbortOn = _ABORT_ON,
    watch: Watch = _WATCH_S,
    dry_run: DryRun = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Change settings of a model on many boxes, in waves.

    If a box fails or breaks a rule, all changed boxes get their previous settings back.
    """
    from edged.models.settings import parse_assignments

    order = Order("settings", name, settings=parse_assignments(setting))
    _begin(order, canary, then, abort_on, watch, dry_run, targets, json)


def rebuild(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")],
    force: Annotated[bool, typer.Option("--force", help="Also rebuild engines that are accepted or rejected.")] = False,
    canary: Canary = _CANARY,
    then: Then = _THEN,
    abort_on: AbortOn = _ABORT_ON,
    watch: Watch = _WATCH_S,
    dry_run: DryRun = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Build engines of a model again on many boxes, in waves.

    Use it after a change of drivers on boxes with engines.build = "command". If a box fails or breaks a rule, no
    further box builds.
    """
    order = Order("rebuild", name, force=force)
    _begin(order, canary, then, abort_on, watch, dry_run, targets, json)


def reload(
    canary: Canary = _CANARY,
    then: Then = _THEN,
    abort_on: AbortOn = _ABORT_ON,
    watch: Watch = _WATCH_S,
    dry_run: DryRun = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Read the configuration file again on many boxes, in waves.

    The file must be on the boxes already. If a box fails or breaks a rule, no further box reads it.
    """
    _begin(Order("reload"), canary, then, abort_on, watch, dry_run, targets, json)


def resume(
    name: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's name; see edged fleet rollout list.")],
    json: common.Json = False,
) -> None:
    """Continue an interrupted rollout, or a rollback.

    Boxes that are changed already are not changed again. If some boxes could not be rolled back, the command tries to
    roll them back again.
    """
    record.load(name)  # raises an error for an invalid name before a lock is taken
    with record.alone(name):
        found = record.load(name)
        if not found.can_be_resumed:
            raise InvalidInput(f"rollout {name} is {found.state} and cannot be resumed; begin a new rollout")
        inventory = Path(found.inventory) if found.inventory else None
        boxes = Targets(tuple(found.targets), inventory, tuple(found.groups)).boxes()
        now = {box.name: address.resolve(box.target) for box in boxes}
        for box, target in found.addresses.items():
            if now.get(box) != target:
                raise InvalidInput(
                    f"box {box} no longer has the address {target} in the inventory; begin a new rollout"
                )
        found.note(f"resumed by {record.user()}")
        _carry_out(found, [box for box in boxes if box.name in found.boxes], json)


def list_(json: common.Json = False) -> None:
    """List the rollouts that began on this machine."""
    found, damaged = [], {}
    for name in record.names():
        try:
            found.append(record.load(name))
        except EdgedError as error:
            damaged[name] = str(error)
    if json:
        common.print_json(msgspec.json.encode({"rollouts": found, "damaged": damaged}))
        return
    table = common.table("ROLLOUT", "BY", "STATE", "BOXES", "WHY")
    for name, why in damaged.items():
        table.add_row(name, "", "damaged", "", why)
    for each in found:
        done = sum(box.state == "done" for box in each.boxes.values())
        state = each.state if each.state in ("done", "aborted") else f"{each.state}, or interrupted"
        table.add_row(each.id, each.user, state, f"{done} of {len(each.boxes)} changed", each.why)
    common.show(table if found or damaged else "no rollouts yet")


def show(
    name: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's name; see edged fleet rollout list.")],
    json: common.Json = False,
) -> None:
    """Show a rollout: its boxes, their figures, what happened."""
    found = record.load(name)
    if json:
        common.print_json(msgspec.json.encode(found))
        return
    common.show(f"{found.id}: {found.state}" + (f": {found.why}" if found.why else ""))
    table = common.table("BOX", "STATE", "SECONDS", "INFER MS", "P99 MS", "PROBLEM")
    for box, each in found.boxes.items():
        table.add_row(box, each.state, f"{each.seconds:g}", *_before_after(each), each.problem)
    common.show(table)
    for step in found.history:
        common.show(f"{formatting.moment(step.unix_s)}  {formatting.shown(step.text)}")


def _before_after(box: BoxRecord) -> tuple[str, str]:
    def pair(before: float | None, after: float | None) -> str:
        if before is None and after is None:
            return ""  # no figure is known
        return " → ".join("?" if each is None else f"{each:.3g}" for each in (before, after))

    if box.before is None:
        return "", ""
    after = box.after or plan.Figures()
    return pair(box.before.infer_ms, after.infer_ms), pair(box.before.p99_ms, after.p99_ms)


def _begin(
    order: Order, canary: int, then: str, abort_on: str, watch: float, dry_run: bool, targets: Targets, json: bool
) -> None:
    if not targets.is_fleet:
        raise InvalidInput("a rollout needs several boxes; give --inventory FILE, or several --target")
    if "infer" in plan.parse_rules(abort_on).factors and not order.model:
        raise InvalidInput(
            "--abort-on infer cannot be used with a reload, which concerns no single model; use alarms, failures or p99"
        )
    boxes = targets.boxes()
    waves = plan.waves([box.name for box in boxes], canary, then)
    change = changes.of(order)
    if not json or dry_run:
        _show_plan(order, change.plan(), waves, abort_on, watch)
    if away := run.unreachable(boxes):
        raise Refused(
            "nothing was changed, since some boxes do not answer: "
            f"{'; '.join(f'{name}: {why}' for name, why in away.items())}"
        )
    if dry_run:
        return
    began = Record(
        *(record.new_id(order), order, [list(wave) for wave in waves], abort_on, watch),
        *(str(targets.inventory.absolute()) if targets.inventory else "", list(targets.targets), list(targets.groups)),
        {box.name: address.resolve(box.target) for box in boxes},
        *(record.user(), 0.0),
        boxes={box.name: BoxRecord() for box in boxes},
    )
    with record.alone(began.id):
        began.note(f"begun by {began.user}: {change.plan()}")
        began.began_unix_s = began.history[0].unix_s
        _carry_out(began, boxes, json)


def _show_plan(order: Order, change: str, waves: Sequence[Sequence[str]], abort_on: str, watch: float) -> None:
    common.show(f"on each box: {change}")
    for number, wave in enumerate(waves, 1):
        common.show(f"wave {number}: {', '.join(wave)}")
    rules = f"a box fails or breaks a rule ({abort_on})" if abort_on else "a box fails"
    end = "the rollout is undone" if order.can_be_undone else "the rollout ends"
    common.show(f"each wave is watched for {watch:g} s; {end} if {rules}")


def _carry_out(began: Record, boxes: Sequence[Box], json: bool) -> None:
    quietly: Callable[[str], None] = lambda text: None  # noqa: E731
    try:
        change = changes.of(began.order, only_undo=began.only_undo)
        done = run.run(began, change, boxes, quietly if json else common.show)
    except KeyboardInterrupt:
        common.say(f"interrupted; to continue: edged fleet rollout resume {began.id}")
        raise
    if json:
        common.print_json(msgspec.json.encode(began))
    else:
        common.show(f"to see the record: edged fleet rollout show {began.id}")
        if began.can_be_resumed:
            common.show(f"to roll back the other boxes: edged fleet rollout resume {began.id}")
    if not done:
        raise typer.Exit(common.FAILED)


COMMANDS: tuple[Callable[..., None], ...] = (models, settings, rebuild, reload, resume, list_, show)
