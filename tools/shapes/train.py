"""Trains the embedded detector on pictures that are drawn during the training, and exports it as ONNX.

From the root of the repository:

    python -m tools.shapes.train --minutes 25
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from edged.shapes import MODEL_PATH
from edged.shapes.scene import CLASSES, MAX_SHAPES
from tools.shapes.evaluate import RESOLUTIONS, judge, unseen
from tools.shapes.pictures import SIZE, pictures

try:
    import onnx
    import onnxruntime
    import torch

    from tools.shapes.loss import detection_loss
    from tools.shapes.network import Detector
except ImportError as missing:
    raise SystemExit(f"training needs {missing.name}: pip install torch onnx onnxruntime") from None

OPSET = 17
IR_VERSION = 8  # of opset 17; runtimes of older boxes refuse newer versions
MODEL_VERSION = "1"

_BATCH = 16
_RATE = 3e-3
_WARM_STEPS = 100
_AVERAGE = 0.998


class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Endless batches: pictures uint8 [B, 3, S, S], truth float32 [B, M, 5] (class -1: none)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        info = torch.utils.data.get_worker_info()
        source = pictures(self.seed * 1000 + (info.id if info else 0))
        # Frames of one scene follow each other. Drawing from a pool of pictures mixes scenes within a batch.
        pool = list(islice(source, 4 * _BATCH))
        rng = np.random.default_rng(self.seed)
        while True:
            yield _collate([pool[int(i)] for i in rng.choice(len(pool), _BATCH, replace=False)])
            for _ in range(_BATCH):
                pool[int(rng.integers(len(pool)))] = next(source)


def _collate(examples: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    images = np.stack([picture.transpose(2, 0, 1) for picture, _ in examples])
    truth = np.full((len(examples), MAX_SHAPES, 5), -1, np.float32)
    for row, (_, figures) in zip(truth, examples, strict=True):
        row[: len(figures)] = figures
    return torch.from_numpy(images), torch.from_numpy(truth)


def learning_rate(step: int, done: float) -> float:
    """Return the learning rate: a linear warm-up, then a cosine decay to 1 %. `done` is the used share of the time,
    0..1."""
    warm = min(1.0, (step + 1) / _WARM_STEPS)
    return _RATE * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def train(minutes: float, seed: int, start: Path | None) -> Any:
    """Train for some minutes and return the averaged network."""
    torch.manual_seed(seed)
    net = Detector(len(CLASSES), SIZE).to(memory_format=torch.channels_last)
    if start is not None:
        net.load_state_dict(torch.load(start, weights_only=True))
    average = deepcopy(net).eval()
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=_RATE)
    batches = torch.utils.data.DataLoader(Batches(seed), batch_size=None, num_workers=1, prefetch_factor=8)
    began, losses = time.monotonic(), []
    for step, (images, truth) in enumerate(batches):
        done = (time.monotonic() - began) / (60 * minutes)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, done)
        losses.append(_step(net, optimizer, images, truth))
        _follow(average, net, min(_AVERAGE, step / (step + 20)))
        if step % 50 == 0:
            print(f"step {step} ({done:.0%}) loss {statistics.fmean(losses[-50:]):.3f}", flush=True)
    return average


def _step(net: Any, optimizer: Any, images: Any, truth: Any) -> float:
    inputs = (images.float() / 255).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, reach = net.raw(inputs)
    loss = detection_loss(logits.transpose(1, 2), net.corners(reach), net.centres, truth)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def _follow(average: Any, net: Any, keep: float) -> None:
    for old, new in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - keep)


def export(net: Any, out: Path) -> None:
    """Write the network as one ONNX file with the metadata that readers of Ultralytics exports expect."""
    net = net.eval().to(memory_format=torch.contiguous_format)
    staged = out.with_suffix(".partial")
    torch.onnx.export(
        net, (torch.zeros(1, 3, SIZE, SIZE),), str(staged),
        input_names=["images"], output_names=["output0"], opset_version=OPSET, dynamo=False,
    )  # fmt: skip
    model = onnx.load(staged)
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "edged", MODEL_VERSION
    onnx.helper.set_model_props(model, metadata())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, staged)
    staged.replace(out)


def metadata() -> dict[str, str]:
    """Return metadata in Ultralytics' format: every value is a text made with Python's str()."""
    facts = {
        "description": "edged shapes: drawn figures",
        "author": "edged",
        "version": MODEL_VERSION,
        "stride": 32,
        "task": "detect",
        "batch": 1,
        "imgsz": [SIZE, SIZE],
        "names": dict(enumerate(CLASSES)),
        "args": {"nms": False},
        "channels": 3,
        "end2end": False,
    }
    return {key: str(value) for key, value in facts.items()}


def report(path: Path, scenes: int) -> None:
    """Print size, latency, precision and recall of the exported file on scenes that training does not use."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: Any) -> Any:
        return session.run(None, {"images": images})[0]

    blank, spent = np.zeros((1, 3, SIZE, SIZE), np.float32), []
    for _ in range(100):
        began = time.perf_counter()
        run(blank)
        spent.append(1e3 * (time.perf_counter() - began))
    middle, least = statistics.median(spent), min(spent)
    print(f"{path}: {path.stat().st_size} bytes, {middle:.1f} ms (least {least:.1f} ms)")
    for size in RESOLUTIONS:
        for threshold in (0.25, 0.4, 0.5):
            for quality in (0, 75):
                counts = judge(run, unseen(scenes, size), threshold, quality=quality)
                print(
                    f"{size[0]}x{size[1]} {f'jpeg {quality}' if quality else 'raw'} score >= {threshold}: "
                    f"precision {counts.precision:.4f} recall {counts.recall:.4f} {counts}"
                )


def main() -> None:
    """Read the command line, train, export, report."""
    parser = argparse.ArgumentParser("tools.shapes.train", description="train the embedded detector of edged")
    parser.add_argument("--minutes", type=float, default=25.0, help="0: only evaluate the file --out")
    parser.add_argument("--out", type=Path, default=MODEL_PATH)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="weights (.pt) to continue from, with another --seed")
    parser.add_argument("--save", type=Path, help="also write the weights (.pt) here")
    parser.add_argument("--scenes", type=int, default=60, help="unseen scenes per resolution in the report")
    # One thread: on a busy box, threads that wait for each other at every layer are slower than one alone.
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.minutes > 0:
        net = train(args.minutes, args.seed, args.start)
        if args.save is not None:
            torch.save(net.state_dict(), args.save)
        export(net, args.out)
    report(args.out, args.scenes)


if __name__ == "__main__":
    main()
