"""Pipelines of the configuration: their slots, their readiness, and the reports about them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from edged.api.endpoints.publisher import Echo, delivered, encode
from edged.api.grpc.results import Tag, result_of
from edged.client.result import from_proto
from edged.config import Health, Pipeline
from edged.engines.pipelines import Pipelines
from edged.engines.plan import PlannedModel
from edged.engines.readiness import ReadyState
from edged.errors import EdgedError, EngineUnusable, InvalidInput, ModelNotFound, NotReady
from edged.family_packages import Package
from edged.ipc import messages as m
from edged.models.model import Model
from edged.proto import cameras_pb2 as pb
from edged.serving.pipeline_slot import PipelineSlot
from edged.serving.stream import Delivery
from edged.serving.work import Answered, EngineRef, FrameWork, SecondStep
from edged.vision.content import Classes, Content, Embedding, Text
from edged.vision.detections import Detections
from edged.vision.family import Recognition, recognise
from tests.unit.control_room import entry, inspection, planned_model, serve
from tests.vision_exports import spec

HEALTH = Health()
PLATES = Pipeline(detect="cars", then="reader")


class World:
    """Models, and pipelines of them."""

    def __init__(self, **wanted: Pipeline) -> None:
        self.models: dict[str, PlannedModel] = {}
        self.ensembles: set[str] = set()
        self.pipelines = Pipelines(self.models, self.find, self.ensembles)
        self.pipelines.reconfigure(wanted or {"plates": PLATES})

    def find(self, name: str) -> PlannedModel:
        planned = self.models.get(name.partition(":")[0])
        if planned is None:
            raise ModelNotFound(f"no model {name!r}")
        return planned

    def add(self, name: str, family: str, *, is_ready: bool = True) -> PlannedModel:
        planned = self.models[name] = planned_model(name)
        planned.model = model(name, family)
        if is_ready:
            serve(planned, f"key of {name}")
        return planned

    def slot(self, name: str = "plates") -> PipelineSlot:
        found = self.pipelines.find(name)
        assert found is not None
        return found

    def state(self, name: str = "plates") -> tuple[ReadyState, str]:
        ready = self.pipelines.readiness(HEALTH)[name]
        return ready.state, ready.reason


def model(name: str, family: str) -> Model:
    """Return a model of a family, or one that takes only tensors."""
    made = Model.of(entry(name), inspection(name))
    return msgspec.structs.replace(made, recognition=recognition(family))


def recognition(family: str) -> Recognition:
    images = (spec("images", 1, 3, 64, 64),)
    if family == "detector":
        return recognise(images, (spec("output0", 1, 5, 84),), {}, {"family": "ultralytics", "names": "plate"})
    if family == "classifier":
        return recognise(images, (spec("output0", 1, 3),), {}, {"family": "classification", "names": "a,b,c"})
    if family == "unknown":
        return recognise(images, (spec("output0", 1, 7, 7, 7),), {}, {})
    return recognise((spec("x", 1, 4),), (spec("y", 1, 4),), {}, {})


def test_pipeline_is_ready_with_both_models() -> None:
    world = World()
    world.add("cars", "detector")
    world.add("reader", "classifier")
    assert world.state() == (ReadyState.READY, "")
    world.slot().require_ready()


@pytest.mark.parametrize("missing", ["cars", "reader"])
def test_pipeline_without_one_model_is_not_ready_and_names_it(missing: str) -> None:
    world = World()
    world.add("cars", "detector")
    world.add("reader", "classifier")
    del world.models[missing]
    state, reason = world.state()
    assert (state, missing in reason) == (ReadyState.LOADING, True)
    with pytest.raises(NotReady, match=missing) as caught:
        world.slot().require_ready()
    assert "\n" not in str(caught.value)
    world.add(missing, "detector" if missing == "cars" else "classifier")
    assert world.state() == (ReadyState.READY, "")


@pytest.mark.parametrize(
    ("detect", "then", "culprit"),
    [
        ("tensors", "classifier", "cars"),
        ("unknown", "classifier", "cars"),
        ("classifier", "classifier", "cars"),
        ("detector", "tensors", "reader"),
        ("detector", "unknown", "reader"),
    ],
)
def test_pipeline_with_a_model_that_cannot_do_its_step_is_refused(detect: str, then: str, culprit: str) -> None:
    world = World()
    world.add("cars", detect)
    world.add("reader", then)
    state, reason = world.state()
    assert (state, culprit in reason) == (ReadyState.REFUSED, True)
    with pytest.raises(InvalidInput, match=culprit):
        world.slot().require_ready()


def test_pipeline_of_a_model_that_is_being_loaded_accepts_frames() -> None:
    world = World()
    world.add("cars", "detector")
    world.add("reader", "classifier", is_ready=False)
    state, reason = world.state()
    assert (state, "reader" in reason) == (ReadyState.LOADING, True)
    world.slot().require_ready()


def test_pipeline_with_the_name_of_a_model_is_not_used() -> None:
    world = World(cars=Pipeline(detect="reader", then="reader"))
    world.add("cars", "detector")
    assert world.pipelines.find("cars") is None
    assert world.pipelines.detector("cars") == "cars"
    assert world.state("cars")[0] is ReadyState.REFUSED


def test_pipeline_thresholds_apply_to_the_detector() -> None:
    world = World()
    assert world.pipelines.detector("plates") == "cars"
    assert world.pipelines.detector("other") == "other"


def test_pipelines_reconfigured_keep_unchanged_slots_and_all_counts() -> None:
    world = World(plates=PLATES, faces=PLATES)
    kept, changed = world.slot("plates"), world.slot("faces")
    world.pipelines.counts["faces"].answered = 7
    world.pipelines.reconfigure({"plates": PLATES, "faces": Pipeline(detect="cars", then="reader", most=1)})
    assert world.slot("plates") is kept
    assert world.slot("faces") is not changed
    assert world.slot("faces").rule.crops.most == 1
    assert world.pipelines.counts["faces"].answered == 7
    world.pipelines.reconfigure({})
    assert world.pipelines.find("plates") is None
    assert world.pipelines.report(HEALTH) == []


def test_pipelines_report_has_the_configuration_the_state_and_the_counts() -> None:
    world = World(plates=Pipeline(detect="cars", then="reader", classes=("plate",), margin=0.1, crop="corners"))
    world.pipelines.counts["plates"].crops_left_out = 3
    (found,) = world.pipelines.report(HEALTH)
    assert (found.name, found.detect, found.then, found.crop, found.classes) == (
        "plates",
        "cars",
        "reader",
        "corners",
        ("plate",),
    )
    assert (found.state, found.crops_left_out) == ("loading", 3)
    assert "cars" in found.reason


# -- results -----------------------------------------------------------------------------------------------------------

FOUND = Detections.of([(10, 20, 30, 60), (0, 0, 5, 5), (1, 1, 9, 9)], [0.9, 0.8, 0.7], [0, 0, 0])
TIMES = m.Times(1, 2, 3, 4)


def engine(family: str) -> EngineRef:
    return EngineRef(f"key of {family}", "fake", "digest", recognition(family))


def crop(content: Content | None, found: Detections | None = None) -> Answered:
    packed = None if found is None else found.pack()
    family = "classifier" if found is None else "detector"
    return Answered(engine(family), packed, (), 640, 480, 1.5, TIMES, content)


def delivery(*answers: Answered | EdgedError) -> Delivery[Any]:
    rows = tuple(range(len(answers)))
    step = SecondStep("reader", rows, answers, len(FOUND) - len(rows), engine("classifier"), 0.5, TIMES, 9.0)
    answer = Answered(engine("detector"), FOUND.pack(), (), 640, 480, 1.5, TIMES, second=step)
    tag = Tag(pb.Frame(camera="hall", sequence=7), "plates")
    return Delivery("hall", tag, FrameWork(b""), answer, (), 12.5, 99)


async def as_result(*answers: Answered | EdgedError) -> Any:
    return from_proto(pb.Result.FromString(result_of(delivery(*answers)).SerializeToString()))


ANSWERS: dict[str, Answered | EdgedError] = {
    "classes": crop(Classes.of([2, 0], [0.75, 0.25])),
    "text": crop(Text("AB 123", 0.5)),
    "embedding": crop(Embedding.of([3, 4])),
    "no class": crop(Classes()),
    "boxes": crop(None, Detections.of([(11, 21, 12, 22)], [0.5], [0])),
    "no box": crop(None, Detections.empty()),
    "error": EngineUnusable("inference failed"),
}


@pytest.mark.parametrize(
    ("kind", "caption", "fields"),
    [
        ("classes", "c 75%", {"top": "c"}),
        ("text", "AB 123 50%", {"text": "AB 123", "confidence": 0.5}),
        ("embedding", "embedding of 2 values", {"embedding": pytest.approx([0.6, 0.8])}),
        ("no class", "", {"top": "", "predictions": []}),
        ("boxes", "plate", {}),
        ("no box", "", {"predictions": []}),
        ("error", "", {"error": {"code": "INVALID_ARGUMENT", "message": "inference failed"}}),
    ],
)
async def test_result_of_a_pipeline_has_the_nested_answer(kind: str, caption: str, fields: dict[str, Any]) -> None:
    result = await as_result(ANSWERS[kind])
    first, *others = result.detections
    assert first.nested is not None
    assert [each.nested for each in others] == [None, None]
    assert first.nested.caption == caption
    assert result.captions() == [caption, "", ""]
    assert (first.nested.error is not None) == (kind == "error")
    nested = result.json()["predictions"][0]["nested"]
    assert {name: nested[name] for name in fields} == fields
    assert "nested" not in result.json()["predictions"][1]
    assert (result.second.model, result.second.crops, result.second.left_out) == ("reader", 1, 2)
    assert (result.second.timings.infer_ms, result.second.timings.total_ms) == (3.0, 9.0)
    if kind == "boxes":
        (box,) = first.nested.detections
        assert (box.x1, box.y1, box.label) == (11, 21, "plate")


@pytest.mark.parametrize("kind", ANSWERS)
async def test_published_result_of_a_pipeline_has_the_same_nested_fields(kind: str) -> None:
    echo = Echo("hall", 7, "plates")
    published = json.loads(encode(delivered(echo, delivery(ANSWERS[kind]))))
    first, *others = published["predictions"]
    own = (await as_result(ANSWERS[kind])).json()["predictions"][0]["nested"]
    if kind == "error":
        assert first["nested"]["error"]["message"] == own["error"]["message"]
    elif kind == "boxes":
        assert first["nested"]["predictions"][0]["x"] == own["predictions"][0]["x"]
    else:
        assert first["nested"] == json.loads(json.dumps(own))
    assert all("nested" not in each for each in others)
    assert published["second"]["left_out"] == 2


async def test_supervision_of_a_pipeline_has_captions() -> None:
    pytest.importorskip("supervision")
    found = (await as_result(ANSWERS["classes"], ANSWERS["text"])).supervision()
    assert found.data["nested"].tolist() == ["c 75%", "AB 123 50%", ""]


def test_pipeline_with_the_name_of_an_ensemble_is_refused() -> None:
    world = World()
    world.ensembles.add("plates")
    assert world.pipelines.find("plates") is None
    assert "same name" in world.pipelines.readiness(HEALTH)["plates"].reason


@pytest.mark.parametrize("gives_boxes", [True, False])
def test_pipeline_of_a_family_of_another_package_needs_boxes_from_its_first_model(gives_boxes: bool) -> None:
    world = World()
    world.add("reader", "classifier")
    cars = world.add("cars", "detector")
    assert cars.model is not None
    of_package = {
        "family": "strange",
        "package": Package("strange-package", "1.0", "digest"),
        "gives_boxes": gives_boxes,
    }
    known = msgspec.structs.replace(cars.model.recognition, **of_package)
    cars.model = cars.served = msgspec.structs.replace(cars.model, recognition=known)
    found = world.pipelines.readiness(HEALTH)["plates"]
    assert found.is_ready is gives_boxes
    assert ("gives no boxes" in found.reason) is not gives_boxes
