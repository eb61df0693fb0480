"""After an update of ONNX Runtime, the reference's answers are asked for again, and engines are compared with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.device.fingerprint import Fingerprint
from edged.engines import surveyor
from tests.integration.shape_world import until, world, zero


async def test_engine_of_another_backend_is_verified_again_after_an_update_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, zero("x"), backends="null", profile__x="1x1 4x8 8x16") as each:
        await each.serves("null")
        await until(lambda: not each.controller.maker.busy, "all engines are made")
        engine = next(e for e in each.planned.engines.values() if e.recipe.backend == "null")
        golden = tmp_path / "cache" / "golden"
        (before,), judged, facts = golden.iterdir(), engine.standard, each.controller.fingerprint.facts
        built = engine.record.build.created_unix_s if engine.record else 0.0

        async def look(changed: dict[str, str]) -> None:
            monkeypatch.setattr(surveyor, "probe", lambda: Fingerprint(facts | changed))
            assert await each.controller.refresh()

        await look({"nvidia.driver": "999.1"})
        assert engine.standard == judged
        # The installed version with a further number, because a child compares it with the loaded version.
        await look({"runtime.onnxruntime": facts["runtime.onnxruntime"] + ".1"})
        assert engine.standard != judged

        def is_verified() -> bool:
            record = each.controller.store.records().get(engine.digest)
            return record is not None and record.standard == engine.standard

        await until(is_verified, "the engine is verified by the new reference")
        assert engine.record is not None
        assert engine.record.verdict.accepted
        assert engine.record.build.created_unix_s == built
        (after,) = golden.iterdir()
        assert after.name != before.name
