"""`edged pipelines`: show the pipelines of the configuration."""

from __future__ import annotations

from edged.api_types import PipelineInfo
from edged.cli import common, remote
from edged.cli.targets import DEFAULT_TARGETS, Targets


def pipelines(targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Show each pipeline: its models, its state, frames and crops.

    A pipeline runs two models on each frame: the second model gets a crop of each detection of the first.
    Pipelines are tables [pipelines.NAME] in the configuration file.

    FRAMES and CROPS are counted since the daemon started. LEFT OUT counts detections that have a class of the pipeline
    but got no crop: the frame had more than `most` detections, or the bounding box has no area in the picture.
    """
    command = remote.list_command(
        lambda client: list(client.pipelines()),
        _COLUMNS,
        lambda found: [each.json() for each in found],
        empty="no pipelines; add a table [pipelines.NAME] to the configuration file, then: sudo edged reload",
    )
    remote.run(command, targets, json)


def _counted(answered: int, failed: int) -> str:
    return f"{answered} ({failed} failed)" if failed else str(answered)


def _crop(found: PipelineInfo) -> str:
    classes = ", ".join(found.classes) or "all classes"
    margin = f" + {found.margin:.0%}" if found.margin else ""
    return f"{found.crop}{margin}, {classes}, at most {found.most}"


_COLUMNS: tuple[remote.Column[PipelineInfo], ...] = (
    remote.Column("pipeline", lambda found: found.name),
    remote.Column("state", lambda found: found.state),
    remote.Column("detect", lambda found: found.detect),
    remote.Column("then", lambda found: found.then),
    remote.Column("crop", _crop),
    remote.Column("frames", lambda found: _counted(found.answered, found.failed)),
    remote.Column("crops", lambda found: _counted(found.crops_answered, found.crops_failed)),
    remote.Column("left out", lambda found: str(found.crops_left_out or ""), is_optional=True),
    remote.Column("reason", lambda found: found.reason, is_optional=True),
)
