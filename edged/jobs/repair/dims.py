"""Finds the dimensions that the inputs of a model really accept, by running the model. Runs in the child.

Exporters write the sizes of their example into the file, although the graph may accept other sizes. Or they declare a
size as dynamic, although a constant in the graph fixes it. A declaration is changed only with proof. A fixed batch
becomes dynamic if its rows get the same answers in smaller batches. A fixed picture size becomes dynamic if the model
also answers larger pictures. A dynamic size becomes fixed if the model answers only one of the tried sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import onnx

from edged.backends import registry
from edged.backends.contract import Order, Session, Signature
from edged.errors import EdgedError, Unsuitable
from edged.ipc.job_messages import Freed, FreeDims
from edged.jobs.repair.proof import tolerance_for
from edged.store.record import Verdict
from edged.tensors import ANY_SHAPE, Array, Dim, TensorSpec
from edged.verification.probes import tensors
from edged.verification.shape_range import ShapeRange
from edged.verification.verify import Pair, judge

_BATCHES = (1, 2, 3, 4, 8, 16, 32)
_SIZES = (64, 224, 32, 320, 640, 416, 256, 512, 128, 300, 448, 384, 96, 112, 48, 28)
_BATCH, _HEIGHT, _WIDTH = "N", "H", "W"
_ANY = ShapeRange()  # no limits: settings define what is served, not what the graph accepts
_MOST_BYTES = 512 << 20  # the most bytes of the inputs of one trial

Places: TypeAlias = Mapping[tuple[str, int], Dim]  # the new size by input and axis

_Answered: TypeAlias = tuple[dict[str, Array], dict[str, Array]]  # inputs and outputs by name


def free(job: FreeDims) -> Freed:
    """Write the model with the dimensions that its inputs accept. Raises EngineUnusable if the reference cannot open
    the model."""
    return _Trial(job).run()


class _Trial:
    def __init__(self, job: FreeDims) -> None:
        self._job, self._path = job, Path(job.order.model)
        self._backend = registry.load(job.order.recipe.backend)
        self._tolerance = tolerance_for(self._path)
        self._changes: dict[tuple[str, int], Dim] = {}
        self._observed: dict[str, tuple[Dim, ...]] = {}  # shapes of outputs that trials found
        self._details: list[str] = []
        self._figures: dict[str, float] = {}
        self._questions = 0

    def run(self) -> Freed:
        before, sized, refused = _described(self._job.order.signature.inputs), False, ""
        if self._job.dims:
            self._open_nothings()
            self._batch()
            self._close_batch()
            self._close_sizes()
        if self._job.sizes:
            sized, refused = self._sizes()
        if not self._changes:
            return Freed(before, before, refused=refused)
        signature = self._signature()
        self.write(Path(self._job.out), signature)
        details, after = tuple(self._details), _described(signature.inputs)
        return Freed(before, after, details, sized, refused, self._figures, self._questions)

    # -- invalid sizes ---------------------------------------------------------------------------------------------

    def _open_nothings(self) -> None:
        """Make dimensions that are declared as 0 or less dynamic: some exporters mean that any size is allowed."""
        constants = {tensor.name for tensor in self._graph().graph.initializer}
        for value in (v for v in self._graph().graph.input if v.name not in constants):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.WhichOneof("value") == "dim_value" and dim.dim_value <= 0:
                    self._changes[value.name, axis] = _BATCH if axis == 0 else f"{value.name}_{axis}"
                    self._details.append(f"{value.name}[{axis}] is declared as {dim.dim_value}, which means any size")
        if self._changes:
            with self._opened() as (session, signature):
                if self._answered(session, signature) is None:
                    raise Unsuitable("the inputs declare sizes of 0 or less, and the model answers no other sizes")

    # -- a batch from the exporter's example ------------------------------------------------------------------------

    def _batch(self) -> None:
        """Make a fixed batch of several rows dynamic if its rows get the same answers in smaller batches."""
        signature = self._signature()
        rows = {spec.shape[0] for spec in signature.inputs if spec.shape and spec.shape != ANY_SHAPE} - {1}
        if len(rows) != 1 or not isinstance(size := next(iter(rows)), int):
            return
        concerned = [spec.name for spec in signature.inputs if spec.shape[:1] == (size,)]
        with self._opened() as (session, _):
            found = self._answered(session, signature)
        if found is None or any(output.shape[:1] != (size,) for output in found[1].values()):
            return
        inputs, expected = found
        opened: dict[tuple[str, int], Dim] = {(name, 0): _BATCH for name in concerned}
        try:
            verdict = self._by_rows(opened, concerned, inputs, expected, size)
        except EdgedError:  # the model needs exactly this batch
            return
        if verdict.accepted:
            self._changes |= opened
            self._figures |= verdict.figures
            self._details.append(f"each row of a batch of {size} has the same answer alone and in a batch of 2")

    def _by_rows(
        self,
        opened: Places,
        concerned: Sequence[str],
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        size: int,
    ) -> Verdict:
        """Compare the answers to parts of a batch with the answer to the whole batch."""
        parts = [slice(0, 1), slice(size - 1, size), slice(0, 2)]
        with self._opened(opened) as (session, _):
            pairs = []
            for part in parts:
                given = {n: np.ascontiguousarray(a[part]) if n in concerned else a for n, a in inputs.items()}
                answer = {name: array.copy() for name, array in session.infer(given).items()}
                pairs.append(Pair({name: array[part] for name, array in expected.items()}, answer))
        self._questions += len(parts)
        return judge(pairs, self._tolerance)

    # -- sizes that are declared as dynamic, but are fixed ----------------------------------------------------------

    def _close_batch(self) -> None:
        """Declare a dynamic batch as fixed if the model answers only one of the tried sizes."""
        signature = self._signature()
        leading = {s.shape[0] for s in signature.inputs if s.shape and isinstance(s.shape[0], str)} - {*ANY_SHAPE}
        if not leading:
            return
        works: list[int] = []
        with self._opened() as (session, _):
            for size in _BATCHES:
                if self._takes_rows(session, signature, leading, size):
                    works.append(size)
                if len(works) > 1:
                    return
        if len(works) == 1:
            for spec in signature.inputs:
                if spec.shape and spec.shape[0] in leading:
                    self._changes[spec.name, 0] = works[0]
            tried = ", ".join(str(size) for size in _BATCHES if size != works[0])
            self._details.append(f"the model answers a batch of {works[0]}, but no batch of {tried}")

    def _takes_rows(self, session: Session, signature: Signature, leading: AbstractSet[str], size: int) -> bool:
        fixed = _fixed(signature, {(s.name, 0): size for s in signature.inputs if s.shape and s.shape[0] in leading})
        return _keeps_rows(signature, self._answered(session, fixed))

    def _close_sizes(self) -> None:
        """Declare a dynamic picture size as fixed if the model answers only one of the tried sizes."""
        for spec in self._signature().inputs:
            axes = _sides(spec)
            if axes is None or not all(isinstance(spec.shape[axis], str) for axis in axes):
                continue
            signature, works = self._signature(), list[int]()
            with self._opened() as (session, _):
                for size in _SIZES:
                    fixed = _fixed(signature, {(spec.name, axis): size for axis in axes})
                    if _keeps_rows(signature, self._answered(session, fixed)):
                        works.append(size)
                    if len(works) > 1:
                        break
            if len(works) == 1:
                self._changes |= {(spec.name, axis): works[0] for axis in axes}
                self._details.append(
                    f"the model answers pictures of {works[0]}x{works[0]}, but no pictures of the other sizes tried"
                )

    # -- a picture size from the exporter's example -----------------------------------------------------------------

    def _sizes(self) -> tuple[bool, str]:
        """Make the fixed height and width of a picture input dynamic if the model also answers larger pictures. Return
        whether this was done, and the reason if it was not."""
        signature = self._signature()
        spec = next(
            (s for s in signature.inputs if _sides(s) and all(isinstance(s.shape[a], int) for a in _axes(s))), None
        )
        if spec is None:
            return False, "sizes: no input takes pictures of a fixed size"
        axes = _axes(spec)
        height, width = (int(spec.shape[axis]) for axis in axes)
        opened = {(spec.name, axes[0]): _HEIGHT, (spec.name, axes[1]): _WIDTH}
        tried = [(height, width), (2 * height, 2 * width), (2 * height, width)]
        shapes: list[dict[str, tuple[int, ...]]] = []
        try:
            with self._opened(opened) as (session, free):
                for size in tried:
                    fixed = _fixed(free, dict(zip(((spec.name, axis) for axis in axes), size, strict=True)))
                    found = self._answered(session, fixed)
                    if found is None or not all(_is_finite(array) for array in found[1].values()):
                        return False, f"sizes: the model takes no pictures of {size[1]}x{size[0]}"
                    shapes.append({name: array.shape for name, array in found[1].items()})
        except EdgedError as error:
            return False, f"sizes: {error}"
        if any(len(each[name]) != len(shapes[0][name]) for each in shapes for name in each):
            return False, "sizes: the rank of the model's outputs depends on the picture size"
        self._changes |= opened
        self._observed = {name: _common([each[name] for each in shapes], name) for name in shapes[0]}
        self._questions += len(tried)
        self._details.append(f"the model answers pictures of {', '.join(f'{w}x{h}' for h, w in tried)}")
        return True, ""

    # -- running ----------------------------------------------------------------------------------------------------

    def _opened(self, more: Places | None = None) -> _Variant:
        return _Variant(self, {**self._changes, **(more or {})})

    def _answered(self, session: Session, signature: Signature) -> _Answered | None:
        """Return inputs with the model's answer; None if the model answers no probe that fits the signature."""
        recognition = msgspec.structs.replace(self._job.recognition, preprocess=None)
        for probes in tensors(signature, recognition, _ANY):
            if sum(array.nbytes for array in probes[0].inputs.values()) > _MOST_BYTES:
                continue
            try:
                answer = session.infer(probes[0].inputs)
            except EdgedError:
                continue
            return probes[0].inputs, {name: array.copy() for name, array in answer.items()}
        return None

    # -- writing ----------------------------------------------------------------------------------------------------

    def _graph(self) -> onnx.ModelProto:
        return onnx.load(str(self._path), load_external_data=False)

    def _signature(self) -> Signature:
        """Return the declared signature with the changes so far."""
        return self.signature(self._changes)

    def signature(self, places: Places) -> Signature:
        given = self._job.order.signature
        inputs = tuple(_respecified(spec, places) for spec in given.inputs)
        # If the first size of an output is the batch size of an input, both sizes change together.
        batches = {
            spec.shape[0]: new.shape[0]
            for spec, new in zip(given.inputs, inputs, strict=True)
            if spec.shape and spec.shape != ANY_SHAPE and spec.shape[0] != new.shape[0]
        }
        return Signature(inputs, tuple(self._output(spec, batches) for spec in given.outputs))

    def _output(self, spec: TensorSpec, batches: Mapping[Dim, Dim]) -> TensorSpec:
        if not spec.shape or spec.shape == ANY_SHAPE:
            return spec
        shape = self._observed.get(spec.name, spec.shape)
        leading = batches.get(spec.shape[0], shape[0])
        return TensorSpec(spec.name, spec.datatype, (leading, *shape[1:]))

    def order(self, path: Path, signature: Signature) -> Order:
        return msgspec.structs.replace(self._job.order, model=str(path), signature=signature, digest="")

    def open(self, path: Path, signature: Signature) -> Session:
        return self._backend.open(self.order(path, signature))

    def write(self, path: Path, signature: Signature) -> None:
        """Write the model with these inputs and outputs. Remove the inferred shapes of other values, because they
        follow from the old declarations."""
        model = self._graph()
        specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
        for value in (*model.graph.input, *model.graph.output):
            spec = specs.get(value.name)
            if spec is None or spec.shape == ANY_SHAPE:
                continue
            shape = value.type.tensor_type.shape
            for dim, size in zip(shape.dim, spec.shape, strict=False):
                dim.ClearField("value")
                if isinstance(size, int):
                    dim.dim_value = size
                elif size != "?":
                    dim.dim_param = size
        del model.graph.value_info[:]
        path.write_bytes(model.SerializeToString())

    @property
    def scratch(self) -> Path:
        return Path(f"{self._job.out}.trial")


class _Variant:
    """A context that opens the model with other declared sizes, and yields the session and its signature."""

    def __init__(self, trial: _Trial, places: Places) -> None:
        self._trial, self._signature = trial, trial.signature(places)

    def __enter__(self) -> tuple[Session, Signature]:
        path = self._trial.scratch
        self._trial.write(path, self._signature)
        try:
            self._session = self._trial.open(path, self._signature)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self._session, self._signature

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._trial.scratch.unlink(missing_ok=True)


def _respecified(spec: TensorSpec, places: Places) -> TensorSpec:
    if spec.shape == ANY_SHAPE:
        return spec
    shape = tuple(places.get((spec.name, axis), dim) for axis, dim in enumerate(spec.shape))
    return TensorSpec(spec.name, spec.datatype, shape)


def _fixed(signature: Signature, places: Places) -> Signature:
    """Return the signature with the sizes in `places`. Dimensions with the name of such a dimension get its size."""
    named = {
        spec.shape[axis]: places[spec.name, axis]
        for spec in signature.inputs
        for axis in range(len(spec.shape))
        if (spec.name, axis) in places and isinstance(spec.shape[axis], str) and spec.shape[axis] not in ("?", "...")
    }
    inputs = []
    for spec in signature.inputs:
        shape = tuple(places.get((spec.name, axis), named.get(dim, dim)) for axis, dim in enumerate(spec.shape))
        inputs.append(TensorSpec(spec.name, spec.datatype, shape))
    return Signature(tuple(inputs), signature.outputs)


def _keeps_rows(declared: Signature, found: _Answered | None) -> bool:
    """Whether the model answered, and each output has as many rows as the input with the same batch dimension."""
    if found is None:
        return False
    given, answer = found
    rows = {s.shape[0]: given[s.name].shape[0] for s in declared.inputs if s.shape and isinstance(s.shape[0], str)}
    leading = {s.name: rows[s.shape[0]] for s in declared.outputs if s.shape and s.shape[0] in rows.keys() - {"?"}}
    return all(answer[name].shape[:1] == (size,) for name, size in leading.items() if name in answer)


def _sides(spec: TensorSpec) -> tuple[int, int] | None:
    """Return the axes of a picture's height and width; None if the input cannot be a picture."""
    if len(spec.shape) != 4:
        return None
    if spec.shape[1] in (1, 3, 4):
        return 2, 3
    return (1, 2) if spec.shape[3] in (1, 3, 4) else None


def _axes(spec: TensorSpec) -> tuple[int, int]:
    axes = _sides(spec)
    assert axes is not None
    return axes


def _common(shapes: Sequence[tuple[int, ...]], name: str) -> tuple[Dim, ...]:
    """Return one shape for all `shapes`, with a name for each size that differs between them."""
    return tuple(
        sizes[0] if len(set(sizes)) == 1 else f"{name}_{a}" for a, sizes in enumerate(zip(*shapes, strict=True))
    )


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {'x'.join(map(str, spec.shape))}" for spec in specs)
