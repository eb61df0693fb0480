"""One question to an opened engine, and what its answer must look like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edged.backends.contract import Signature
from edged.engines.probe import KnownAnswers, NoUsableProbe, OutputForm, SessionProbe, fault
from edged.errors import EngineUnusable, HostLost, InvalidInput, NotReady, Overloaded, WrongAnswers
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.models.model import Model
from edged.tensors import Array, TensorSpec
from edged.verification.golden import Sample
from tests.unit.control_room import entry, inspection
from tests.waiting import run

NAN = float("nan")


class Host:
    """As much of a link as being probe_session takes: `answer` gives the outputs to an input, or raises."""

    def __init__(self, answer: Callable[[Array], Array | Exception]) -> None:
        self.arena = Arena(1 << 22)
        self.answer = answer
        self.probe_session: list[tuple[int, ...]] = []

    def submit(self, make: Callable[[int], m.Infer]) -> asyncio.Future[m.Answer]:
        order = make(1)
        (ref,) = order.inputs
        assert ref.span is not None
        data = np.frombuffer(bytes(self.arena.read(ref.span)), np.float32).reshape(ref.shape)
        self.probe_session.append(ref.shape)
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        found = self.answer(data)
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            output = m.TensorRef("y", _datatype(found), found.shape, None, found.tobytes())
            future.set_result(m.Answer(1, (output,), m.Times()))
        return future


def _datatype(array: Array) -> str:
    return {"float32": "FP32", "float64": "FP64", "int32": "INT32"}[array.dtype.name]


def acquaintance(shape: tuple[int | str, ...] = (1, 4)) -> KnownAnswers:
    return KnownAnswers(Model.of(entry(), inspection(shape=shape)))


def nothing(_: Model) -> Sequence[Sample]:
    return ()


def ask(
    host: Host,
    known: KnownAnswers | None = None,
    *,
    is_reference: bool = False,
    recorded: Callable[[Model], Sequence[Sample]] = nothing,
) -> KnownAnswers:
    known = known or acquaintance()
    link: Any = host
    run(SessionProbe(recorded).ask(known, link, 1, is_reference=is_reference))
    return known


def same(array: Array) -> Array:
    return array


# -- asking ---------------------------------------------------------------------------------------------------------


def test_an_engine_that_answers_is_asked_once_with_values_that_are_not_all_the_same() -> None:
    seen: list[Array] = []

    def answer(array: Array) -> Array:
        seen.append(array)
        return array

    host = Host(answer)
    known = ask(host)
    assert host.probe_session == [(1, 4)]
    assert len(np.unique(seen[0])) > 1
    assert known.place == 0


def test_shapes_that_a_model_takes_are_found_by_asking_and_remembered() -> None:
    host = Host(lambda array: array if array.shape[1] == 8 else EngineUnusable("the width must be 8"))
    known = ask(host, acquaintance(("n", "w")), is_reference=True)
    assert host.probe_session[-1] == (1, 8)
    host.probe_session.clear()
    ask(host, known)
    assert host.probe_session == [(1, 8)]


def test_numbers_that_might_mean_how_much_are_never_large() -> None:
    host = Host(lambda array: EngineUnusable("no") if np.abs(array).max() < 32 else array)
    with pytest.raises(NoUsableProbe):
        ask(host, is_reference=True)


def test_ask_reference_that_refuses_every_probe_has_no_usable_probe() -> None:
    with pytest.raises(NoUsableProbe, match="it answers no probe: the index is out of range"):
        ask(Host(lambda _: EngineUnusable("the index is out of range")), is_reference=True)


def test_ask_engine_that_refuses_an_answered_probe_is_unusable() -> None:
    known = ask(Host(same), is_reference=True)
    with pytest.raises(EngineUnusable, match="refuses what the reference answers") as refused:
        ask(Host(lambda _: EngineUnusable("no kernel")), known)
    assert not isinstance(refused.value, NoUsableProbe)


def test_ask_engine_that_refuses_a_recorded_probe_is_unusable() -> None:
    array = np.ones((1, 4), np.float32)
    sample = Sample({"x": array}, {"y": array}, "unit")
    with pytest.raises(EngineUnusable, match="refuses what the reference answers"):
        ask(Host(lambda _: EngineUnusable("no kernel")), recorded=lambda _: [sample])


@pytest.mark.parametrize("kind", ["picture", "wide"])
def test_ask_engine_without_an_answered_probe_has_no_usable_probe(kind: str) -> None:
    array = np.ones((1, 4), np.float32)
    sample = Sample({"x": array}, {"y": array}, kind)
    with pytest.raises(NoUsableProbe):
        ask(Host(lambda _: EngineUnusable("no kernel")), recorded=lambda _: [sample])


@pytest.mark.parametrize("error", [HostLost("it died"), InvalidInput("no"), Overloaded("full")])
def test_ask_passes_other_errors_on(error: Exception) -> None:
    kinds = {HostLost: HostLost, InvalidInput: NoUsableProbe, Overloaded: NotReady}
    with pytest.raises(kinds[type(error)]):  # type: ignore[index]
        ask(Host(lambda _: error))


def test_an_answer_that_is_no_number_is_wrong_unless_the_reference_gives_it_too() -> None:
    host = Host(lambda array: array * np.float32(NAN))
    with pytest.raises(WrongAnswers, match="NaN"):
        ask(host)
    known = ask(host, is_reference=True)
    ask(host, known)


def test_ask_uses_recorded_answers_of_the_reference() -> None:
    def recorded(model: Model) -> Sequence[Sample]:
        array = np.full((1, 4), NAN, np.float32)
        return [Sample({"x": np.ones((1, 4), np.float32)}, {"y": array}, "unit")]

    ask(Host(lambda array: array * np.float32(NAN)), recorded=recorded)


def test_the_reference_may_answer_in_other_shapes_than_its_file_declares_and_then_so_may_the_others() -> None:
    host = Host(lambda array: np.zeros((1, 7), np.float32))
    with pytest.raises(WrongAnswers, match=r"is \[1, 7\], the model declares \[1, 4\]"):
        ask(host)
    ask(host, ask(host, is_reference=True))


def test_an_answer_of_another_datatype_is_wrong() -> None:
    with pytest.raises(WrongAnswers):
        ask(Host(lambda array: array.astype(np.float64)))


def test_nothing_is_left_in_the_shared_memory() -> None:
    host = Host(lambda _: EngineUnusable("no"))
    for _ in range(3):
        with pytest.raises(NoUsableProbe):
            ask(host)
    whole = host.arena.reserve(1 << 21)
    host.arena.release(whole)


# -- the form of an answer ------------------------------------------------------------------------------------------

SIGNATURE = Signature((), (TensorSpec("a", "FP32", ("n", 4)), TensorSpec("b", "INT64", (1,))))
GOOD = {"a": OutputForm("FP32", (2, 4), True), "b": OutputForm("INT64", (1,), True)}


def test_an_answer_as_declared_has_no_fault() -> None:
    assert fault(SIGNATURE, GOOD, {}) == ""


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"a": None}, "without output 'a'"),
        ({"b": OutputForm("INT32", (1,), True)}, "is INT32, the model declares INT64"),
        ({"a": OutputForm("FP32", (2, 5), True)}, "is [2, 5], the model declares [-1, 4]"),
        ({"a": OutputForm("FP32", (2, 4), False)}, "NaN or infinity"),
    ],
)
def test_each_fault_names_its_output(change: dict[str, OutputForm | None], reported: str) -> None:
    forms = {name: form for name, form in (GOOD | change).items() if form is not None}
    assert reported in fault(SIGNATURE, forms, {})


@pytest.mark.parametrize(
    ("datatype", "bits", "finite"),
    [("BF16", 0x3F80, True), ("BF16", 0x7F80, False), ("BF16", 0xFFC0, False), ("UINT16", 0x7F80, True)],
)
def test_numbers_of_every_width_are_looked_at(datatype: str, bits: int, finite: bool) -> None:
    assert OutputForm.of(datatype, np.array([bits], np.uint16)).is_finite is finite


def test_another_model_is_another_acquaintance() -> None:
    known = acquaintance()
    assert known.is_of(known.model)
    other = Model.of(entry(), inspection("other"))
    assert not known.is_of(other)
    renamed = msgspec.structs.replace(known.model, entry=entry(stamp="2"))
    assert known.is_of(renamed)


# -- a model that answers certain values only -----------------------------------------------------------------------


def only(value: float) -> Callable[[Array], Array | Exception]:
    return lambda array: array if (array == value).all() else EngineUnusable("not this one")


def test_ask_falls_back_to_constants() -> None:
    host = Host(only(1.0))
    known = ask(host, is_reference=True)
    assert known.place == len(host.probe_session) - 1, "every other kind came first"


def test_ask_takes_the_users_samples_first_and_again_when_replaced(tmp_path: Path) -> None:
    np.savez(tmp_path / "ask.npz", x=np.full((1, 4), 7.5, np.float32))
    given = msgspec.structs.replace(entry(), samples=(str(tmp_path / "ask.npz"),))
    host, known = Host(only(7.5)), KnownAnswers(Model.of(given, inspection()))
    ask(host, known, is_reference=True)
    assert (known.place, len(host.probe_session)) == (0, 1)
    assert known.is_of(Model.of(given, inspection()))
    assert not known.is_of(Model.of(msgspec.structs.replace(given, stamp="2"), inspection()))
    (tmp_path / "ask.npz").write_bytes(b"half copied")
    with pytest.raises(NoUsableProbe, match=r"ask\.npz"):
        ask(host, KnownAnswers(Model.of(given, inspection())), is_reference=True)


# -- golden questions -----------------------------------------------------------------------------------------------


def compared(answer: Callable[[Array], Array | Exception], samples: Sequence[Sample], precision: str = "fp32") -> str:
    async def story() -> str:
        host = Host(answer)
        known = acquaintance()
        return await SessionProbe(lambda _: samples).compare(known.model, precision, host, 1)  # type: ignore[arg-type]

    return run(story())


def golden_answers() -> list[Sample]:
    arrays = [np.linspace(1, number, 4, dtype=np.float32).reshape(1, 4) for number in (2, 3, 4, 5)]
    return [Sample({"x": array}, {"y": 2 * array}, "random", str(number)) for number, array in enumerate(arrays)]


def test_compare_engine_of_another_model_reports_the_difference() -> None:
    assert compared(lambda array: 3 * array, golden_answers())
    assert compared(lambda array: -array, golden_answers(), "fp16")


def test_compare_engine_that_answers_as_the_reference_did_is_right_after_one_question() -> None:
    probe_session: list[Array] = []

    def answer(array: Array) -> Array:
        probe_session.append(array)
        return 2 * array

    assert compared(answer, golden_answers()) == ""
    assert len(probe_session) == 1


def test_compare_without_golden_answers_has_nothing_against_an_engine() -> None:
    assert compared(lambda array: 3 * array, []) == ""
    assert compared(lambda _: InvalidInput("not this"), golden_answers()) == ""
