"""Metrics of the cameras, of as many as a dashboard can show: ids come from clients, who may make up as they like."""

from __future__ import annotations

from edged.metrics import names
from edged.metrics.sheet import Sheet
from edged.serving.camera import Cameras

_MOST = 256


def collect(sheet: Sheet, cameras: Cameras) -> None:
    """All cameras are counted; those that were heard of last are listed."""
    records = cameras.records()
    sheet.put(names.CAMERAS, len(records))
    for record in sorted(records, key=lambda record: record.seen, reverse=True)[:_MOST]:
        who = (record.camera, record.model)
        sheet.put(names.CAMERA_RECEIVED, record.received, *who)
        sheet.put(names.CAMERA_ANSWERED, record.answered, *who)
        sheet.put(names.CAMERA_FAILED, record.failed, *who)
        sheet.put(names.CAMERA_DROPPED, record.dropped, *who)
        for reason, count in record.skipped.items():
            sheet.put(names.CAMERA_SKIPPED, count, *who, reason)
        sheet.spread(names.CAMERA_AGE, record.age_seconds, *who)
