"""Batch sizes of frames, and batching of tensor requests. Pure."""

from __future__ import annotations

from edged.backends.contract import Recipe
from edged.backends.profile import parsed
from edged.models.model import Model
from edged.models.settings import batch_wait_seconds, max_batch
from edged.models.triton_config import QueuePolicy as SaidPolicy
from edged.serving.schedule import Batching, QueuePolicy, TensorBatching
from edged.serving.work import ANY_NUMBER


def batching(model: Model, recipe: Recipe) -> Batching:
    """Return the batching of frames: as the model fixes or the engine's range of shapes allows, otherwise the
    configured one, or 1.

    A CPU gains little from batches, and every frame of one waits for the others, so only engines with a range of
    shapes, as on a GPU, batch without being configured.
    """
    said = model.entry.settings
    limit = _limit(model, recipe, max_batch(said))
    return Batching(limit, batch_wait_seconds(said) if limit > 1 else 0.0)


def tensor_batching(model: Model) -> TensorBatching:
    """Return the batching of tensor requests: by `dynamic_batching` of config.pbtxt, or by `batch.max` and
    `batch.wait_ms`; otherwise, as in Triton, requests run one by one."""
    said, dynamic, most = model.entry.settings, model.triton.dynamic, model.max_batch_size
    if dynamic is None:
        is_wanted = most > 1 and max_batch(said) is not None
        return TensorBatching(Batching(most, batch_wait_seconds(said)) if is_wanted else Batching())
    preferred = tuple(size for size in dynamic.preferred if size <= most)
    return TensorBatching(
        Batching(max(1, most), dynamic.max_delay if most > 1 else 0.0, preferred),
        _policy(dynamic.policy),
        dynamic.levels,
        dynamic.default_level,
        {level: _policy(policy) for level, policy in dynamic.policies.items()},
    )


def _policy(said: SaidPolicy) -> QueuePolicy:
    return QueuePolicy(said.size, said.timeout, said.allow_override, said.delay)


def rows(recipe: Recipe) -> int:
    """Return the most rows of a tensor request that an engine's range of shapes allows."""
    return min((each.maximum[0] for each in parsed(recipe.profile).ranges if each.maximum), default=ANY_NUMBER)


def _limit(model: Model, recipe: Recipe, wanted: int | None) -> int:
    recognition, signature = model.recognition, model.inspection.signature
    spec = next((spec for spec in signature.inputs if spec.name == recognition.input), None)
    if recognition.family is None or spec is None:
        return 1
    batch = spec.shape[0]
    if isinstance(batch, int):
        return min(batch, wanted or batch)
    if any(output.shape and output.shape[0] == 1 for output in signature.outputs):
        return 1  # whatever the input says, only one picture comes out
    allowed = parsed(recipe.profile).range(spec.name)
    if allowed is None:
        return wanted or 1
    return min(allowed.maximum[0], wanted or allowed.maximum[0])
