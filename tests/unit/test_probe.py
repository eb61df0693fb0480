"""The probe of an opened engine: its inputs, the check of the answer, and warm-up requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edged import errors as e
from edged.backends.contract import Signature
from edged.engines.probe import KnownAnswers, NoUsableProbe, OutputForm, SessionProbe, fault, warm_up
from edged.errors import (
    EngineUnusable,
    HostLost,
    InvalidInput,
    NotReady,
    OutOfMemory,
    Overloaded,
    Superseded,
    WarmupFailed,
    WrongAnswers,
)
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.models.model import Model
from edged.models.triton_config import TritonConfig, Warmup, WarmupInput
from edged.tensors import Array, TensorSpec
from edged.verification import user_samples
from edged.verification.golden import Sample
from edged.verification.probes import Probe
from tests.unit.control_room import entry, inspection
from tests.waiting import run

NAN = np.full((1, 4), np.nan, np.float32)
ONES = np.ones((1, 4), np.float32)
DATATYPES = {"float32": "FP32", "float64": "FP64", "int32": "INT32"}
Answer = Callable[[Array], Array | Exception]


def same(array: Array) -> Array:
    return array


def refuse(why: str) -> Answer:
    return lambda _: EngineUnusable(why)


def only(value: float) -> Answer:
    """Return a function that answers only inputs of this value."""
    return lambda array: array if (array == value).all() else EngineUnusable("not this one")


class Host:
    """A host link for probes. `answer` returns the output for an input, or an error."""

    def __init__(self, answer: Answer = same, capacity: int = 1 << 22) -> None:
        self.arena, self.answer = Arena(capacity), answer
        self.asked: list[Array] = []

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in self.asked]

    def submit(self, make: Callable[[int], m.Infer]) -> asyncio.Future[m.Answer]:
        (ref,) = make(1).inputs
        assert ref.span is not None
        self.asked.append(np.frombuffer(bytes(self.arena.read(ref.span)), np.float32).reshape(ref.shape))
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        found = self.answer(self.asked[-1])
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            output = m.TensorRef("y", DATATYPES[found.dtype.name], found.shape, None, found.tobytes())
            future.set_result(m.Answer(1, (output,), m.Times()))
        return future


def known_answers(shape: tuple[int | str, ...] = (1, 4)) -> KnownAnswers:
    return KnownAnswers(Model.of(entry(), inspection(shape=shape)))


def ask(host: Host, known: KnownAnswers | None = None, *recorded: Sample, is_reference: bool = False) -> KnownAnswers:
    known, link = known or known_answers(), host
    probe: Any = SessionProbe(lambda _: recorded)
    run(probe.ask(known, link, 1, is_reference=is_reference))
    return known


# -- asking ---------------------------------------------------------------------------------------------------------


def test_ask_engine_that_answers_gets_one_probe_with_different_values() -> None:
    known = ask(host := Host())
    assert host.shapes == [(1, 4)]
    assert len(np.unique(host.asked[0])) > 1
    assert known.place == 0


def test_ask_finds_and_remembers_shapes_that_the_model_accepts() -> None:
    host = Host(lambda array: array if array.shape[1] == 8 else EngineUnusable("the width must be 8"))
    known = ask(host, known_answers(("n", "w")), is_reference=True)
    assert host.shapes[-1] == (1, 8)
    host.asked.clear()
    ask(host, known)
    assert host.shapes == [(1, 8)]


def recorded(kind: str, answer: Array = ONES) -> Sample:
    return Sample({"x": ONES}, {"y": answer}, kind)


def test_ask_without_memory_is_out_of_memory_only_if_the_probe_was_answered_before() -> None:
    full: Answer = lambda _: OutOfMemory("out of memory")  # noqa: E731
    with pytest.raises(NoUsableProbe):
        ask(Host(full))
    with pytest.raises(OutOfMemory):
        ask(Host(full), ask(Host(), is_reference=True))


@pytest.mark.parametrize("error", [InvalidInput("Input/output error"), Superseded("it was replaced")], ids=str)
def test_ask_sample_that_cannot_be_read_is_no_answer_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def unreadable() -> Probe:
        raise error

    known, host = ask(Host(), is_reference=True), Host()
    monkeypatch.setattr(user_samples, "tensor_probes", lambda *_: [unreadable])
    with pytest.raises(NotReady):
        ask(host, known)
    assert host.asked == []
    assert ask(host).place == 1  # without an earlier answer, the next probe decides


def test_ask_engine_that_refuses_an_answered_probe_is_unusable() -> None:
    known = ask(Host(), is_reference=True)
    for samples in [(), (recorded("unit"),)]:
        with pytest.raises(EngineUnusable, match="refuses probes that the reference answers") as refused:
            ask(Host(refuse("no kernel")), None if samples else known, *samples)
        assert not isinstance(refused.value, NoUsableProbe)


NO_PROBE: dict[str, tuple[Answer, tuple[Sample, ...], bool, str]] = {
    "the reference refuses all": (refuse("out of range"), (), True, r"the engine answers none of .*: out of range"),
    "only large numbers": (
        lambda array: EngineUnusable("no") if np.abs(array).max() < 32 else array,
        (),
        True,
        "",
    ),
    "recorded of a picture": (refuse("no kernel"), (recorded("picture"),), False, ""),
    "recorded of wide values": (refuse("no kernel"), (recorded("wide"),), False, ""),
    "nothing recorded": (refuse("no"), (), False, ""),
    "invalid input": (lambda _: InvalidInput("no"), (), False, ""),
}


@pytest.mark.parametrize("case", NO_PROBE)
def test_ask_engine_without_an_answered_probe_has_no_usable_probe(case: str) -> None:
    answer, samples, is_reference, reason = NO_PROBE[case]
    host = Host(answer)
    for _ in range(3):
        with pytest.raises(NoUsableProbe, match=reason or None):
            ask(host, None, *samples, is_reference=is_reference)
    assert host.arena.taken == 0


@pytest.mark.parametrize(("error", "raised"), [(HostLost("it died"), HostLost), (Overloaded("full"), NotReady)])
def test_ask_passes_other_errors_on(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        ask(Host(lambda _: error))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda array: NAN, "NaN"),
        (lambda array: np.zeros((1, 7), np.float32), r"is \[1, 7\], but the model declares \[1, 4\]"),
    ],
)
def test_ask_answer_of_another_form_is_wrong_unless_the_reference_has_it(answer: Answer, reason: str) -> None:
    host = Host(answer)
    with pytest.raises(WrongAnswers, match=reason):
        ask(host)
    ask(host, ask(host, is_reference=True))


def test_ask_uses_recorded_answers_of_the_reference() -> None:
    ask(Host(lambda _: NAN), None, recorded("unit", NAN))


def test_ask_answer_of_another_datatype_is_wrong() -> None:
    with pytest.raises(WrongAnswers):
        ask(Host(lambda array: array.astype(np.float64)))


def test_ask_falls_back_to_constants() -> None:
    known = ask(host := Host(only(1.0)), is_reference=True)
    assert known.place == len(host.asked) - 1, "all other kinds are tried first"


def test_ask_uses_the_users_samples_first_and_again_when_replaced(tmp_path: Path) -> None:
    np.savez(tmp_path / "ask.npz", x=7.5 * ONES)
    given = msgspec.structs.replace(entry(), samples=(str(tmp_path / "ask.npz"),))
    host, known = Host(only(7.5)), KnownAnswers(Model.of(given, inspection()))
    ask(host, known, is_reference=True)
    assert (known.place, len(host.asked)) == (0, 1)
    assert known.is_of(Model.of(given, inspection()))
    assert not known.is_of(Model.of(msgspec.structs.replace(given, stamp="2"), inspection()))
    assert not known.is_of(Model.of(msgspec.structs.replace(given, stamp="2", samples=()), inspection()))
    (tmp_path / "ask.npz").write_bytes(b"half copied")
    with pytest.raises(NoUsableProbe, match=r"ask\.npz"):
        ask(host, KnownAnswers(Model.of(given, inspection())), is_reference=True)


def test_known_answers_are_of_a_model_with_its_content() -> None:
    known = known_answers()
    assert known.is_of(known.model)
    assert known.is_of(msgspec.structs.replace(known.model, entry=entry(stamp="2")))
    assert not known.is_of(Model.of(entry(), inspection("other")))


def test_known_answers_of_another_range_of_shapes_are_void() -> None:
    before, after = (
        Model.of(entry(**{"profile.x": text}), inspection(shape=("n", 4))) for text in ("1x4 1x4 4x4", "2x4 2x4 4x4")
    )
    assert not KnownAnswers(before).is_of(after)


# -- the form of an answer ------------------------------------------------------------------------------------------

SIGNATURE = Signature((), (TensorSpec("a", "FP32", ("n", 4)), TensorSpec("b", "INT64", (1,))))
GOOD = {"a": OutputForm("FP32", (2, 4), True), "b": OutputForm("INT64", (1,), True)}


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"a": None}, "has no output 'a'"),
        ({"b": OutputForm("INT32", (1,), True)}, "is INT32, but the model declares INT64"),
        ({"a": OutputForm("FP32", (2, 5), True)}, "is [2, 5], but the model declares [-1, 4]"),
        ({"a": OutputForm("FP32", (2, 4), False)}, "NaN or infinity"),
    ],
)
def test_fault_names_its_output(change: dict[str, OutputForm | None], reported: str) -> None:
    assert fault(SIGNATURE, GOOD, {}) == ""
    forms = {name: form for name, form in (GOOD | change).items() if form is not None}
    assert reported in fault(SIGNATURE, forms, {})


@pytest.mark.parametrize(
    ("datatype", "bits", "finite"),
    [("BF16", 0x3F80, True), ("BF16", 0x7F80, False), ("BF16", 0xFFC0, False), ("UINT16", 0x7F80, True)],
)
def test_output_form_checks_floats_of_every_width(datatype: str, bits: int, finite: bool) -> None:
    assert OutputForm.of(datatype, np.array([bits], np.uint16)).is_finite is finite


# -- golden answers -------------------------------------------------------------------------------------------------

ARRAYS = [np.linspace(1, number, 4, dtype=np.float32).reshape(1, 4) for number in (2, 3, 4, 5)]
GOLDEN = [Sample({"x": array}, {"y": 2 * array}, "random", str(number)) for number, array in enumerate(ARRAYS)]


@pytest.mark.parametrize(
    ("answer", "samples", "precision", "right", "asked"),
    [
        pytest.param(lambda array: 2 * array, GOLDEN, "fp32", True, 1, id="one question is enough"),
        pytest.param(lambda array: 3 * array, GOLDEN, "fp32", False, 3, id="another model"),
        pytest.param(lambda array: -array, GOLDEN, "fp16", False, 3, id="another model in fp16"),
        pytest.param(lambda array: 3 * array, [], "fp32", True, 0, id="no golden answers"),
        pytest.param(lambda _: InvalidInput("not this"), GOLDEN, "fp32", True, 3, id="it answers none"),
    ],
)
def test_compare_uses_the_first_golden_answers_that_the_engine_gives(
    answer: Answer, samples: Sequence[Sample], precision: str, right: bool, asked: int
) -> None:
    host: Any = Host(answer)
    reported = run(SessionProbe(lambda _: samples).compare(known_answers().model, precision, host, 1))
    assert (reported == "", len(host.asked)) == (right, asked)


# -- warm-up ----------------------------------------------------------------------------------------------------------


def warm(host: Host, shape: tuple[int, ...] = (1, 4), count: int = 1) -> None:
    config = TritonConfig(warmups=(Warmup("w", count=count, inputs=(WarmupInput("x", "FP32", shape),)),))
    link: Any = host
    run(warm_up(Model.of(msgspec.structs.replace(entry(), triton=config), inspection(shape=(1, "n"))), link, 1))


def test_warm_up_runs_as_often_as_configured_and_frees_the_arena() -> None:
    warm(host := Host(), count=3)
    assert (len(host.asked), host.arena.taken) == (3, 0)


@pytest.mark.parametrize(
    ("kind", "raised", "message"),
    [
        *((k, k, "'w'") for k in (e.OutOfMemory, Overloaded, NotReady, e.DeadlineExceeded)),  # these are temporary
        *((kind, WarmupFailed, "'w'") for kind in (EngineUnusable, InvalidInput, e.TooLarge)),
        (HostLost, HostLost, "^no$"),  # the error is passed on unchanged
    ],
)
def test_warm_up_blames_the_engine_for_permanent_errors_only(
    kind: type[e.EdgedError], raised: type[e.EdgedError], message: str
) -> None:
    host = Host(lambda _: kind("no"))
    with pytest.raises(raised, match=message) as error:
        warm(host)
    assert isinstance(error.value, WarmupFailed) is (raised is WarmupFailed)
    assert host.arena.taken == 0


def test_warm_up_with_a_full_arena_is_overloaded() -> None:
    host = Host(capacity=64)
    span = host.arena.reserve(64)
    with pytest.raises(Overloaded):
        warm(host)
    host.arena.release(span)
    warm(host)
    assert len(host.asked) == 1


def test_warm_up_request_larger_than_the_arena_fails() -> None:
    with pytest.raises(WarmupFailed, match=r"hosts\.arena_mb"):
        warm(Host(capacity=8 * 64), (1, 4096))
