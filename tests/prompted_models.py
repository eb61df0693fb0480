"""Zero-shot detectors that find coloured squares: the embedding of a text is the sum of its tokens' vectors, which are
zero except for "red" and "blue". A token id outside the vocabulary fails, as in real models.

A picture of 64 x 64 input pixels has 16 patches of 16 x 16; the box of each is the patch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from tests import models, tokenizer_files

SIDE, PATCH = 64, 16
_PIXELS = "float[batch_size,num_channels,height,width] pixel_values"
_OWL = """({pixels}, int64[text_batch_size,sequence_length] input_ids,
    int64[text_batch_size,sequence_length] attention_mask)
 => (float[image_batch_size,patches,num_queries] logits, float[image_batch_size,num_boxes,4] pred_boxes,
     float[text_batch_size,max_text_queries,3] text_embeds, float[image_batch_size,3,4,4] image_embeds) {{
    vectors = Gather(table, input_ids)
    mask = Cast<to = 1>(attention_mask)
    column = Unsqueeze(mask, last)
    masked = Mul(vectors, column)
    texts = ReduceSum<keepdims = 0>(masked, one)
    text_embeds = Unsqueeze(texts, zero)
    image_embeds = AveragePool<kernel_shape = [16, 16], strides = [16, 16]>(pixel_values)
    rows = Reshape(image_embeds, flat)
    patches = Transpose<perm = [0, 2, 1]>(rows)
    columns = Transpose<perm = [1, 0]>(texts)
    alike = MatMul(patches, columns)
    scaled = Mul(alike, four)
    logits = Sub(scaled, four)
    sums = ReduceMean<keepdims = 1>(rows, axes)
    nothing = Mul(sums, none)
    pred_boxes = Add(nothing, boxes)
}}"""
_DINO = """({pixels}, int64[batch_size,sequence_length] input_ids, int64[batch_size,sequence_length] token_type_ids,
    int64[batch_size,sequence_length] attention_mask, int64[batch_size,height,width] pixel_mask)
 => (float[batch_size,16,256] logits, float[batch_size,16,4] pred_boxes) {{
    typed = Add(input_ids, token_type_ids)
    vectors = Gather(table, typed)
    ones = Cast<to = 1>(pixel_mask)
    seen = Unsqueeze(ones, one)
    shown = Mul(pixel_values, seen)
    pooled = AveragePool<kernel_shape = [16, 16], strides = [16, 16]>(shown)
    rows = Reshape(pooled, flat)
    patches = Transpose<perm = [0, 2, 1]>(rows)
    tokens = Transpose<perm = [0, 2, 1]>(vectors)
    alike = MatMul(patches, tokens)
    scaled = Mul(alike, four)
    known = Sub(scaled, four)
    both = Concat<axis = 2>(known, infinity)
    logits = Slice(both, start, end, two)
    sums = ReduceMean<keepdims = 1>(rows, axes)
    nothing = Mul(sums, none)
    pred_boxes = Add(nothing, boxes)
}}"""


def write(folder: Path, family: str) -> Path:
    """Write the files of a repository on Hugging Face's hub, and return the ONNX file."""
    is_owl = family.startswith("owl")
    tokenizer = tokenizer_files.clip() if is_owl else tokenizer_files.bert()
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    table = np.zeros((len(vocabulary), 3), np.float32)
    for number, word in ((0, "red"), (2, "blue")):
        table[vocabulary[f"{word}</w>" if is_owl else word], number] = 1
    side = SIDE // PATCH
    centres = [((x + 0.5) / side, (y + 0.5) / side, 1 / side, 1 / side) for y in range(side) for x in range(side)]
    constants: dict[str, npt.NDArray[Any]] = {
        "table": table,
        "boxes": np.array([centres], np.float32),
        "flat": np.array([0, 3, 16]),
        "last": np.array([2]),
        "one": np.array([1]),
        "zero": np.array([0]),
        "axes": np.array([1, 2]),
        "four": np.float32(4),
        "none": np.float32(0),
        "infinity": np.full((1, 16, 256), -np.inf, np.float32),
        "start": np.array([0]),
        "end": np.array([256]),
        "two": np.array([2]),
    }
    text = (_OWL if is_owl else _DINO).format(pixels=_PIXELS)
    used = {name: np.asarray(array) for name, array in constants.items() if name in text}
    tokenizer_files.write(folder, tokenizer)
    (folder / "config.json").write_text(json.dumps({"model_type": family, "id2label": {"0": "LABEL_0"}}))
    (folder / "preprocessor_config.json").write_text(json.dumps(_processor(family)))
    return models.save(models.parse(text, used), folder / "onnx" / "model.onnx")


def _processor(family: str) -> Mapping[str, object]:
    clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    if family == "owlvit":  # an early version of the file
        return {"do_normalize": True, "size": [SIDE, SIDE], **clip}
    if family == "owlv2":
        return {"do_normalize": True, "size": {"height": SIDE, "width": SIDE}, **clip}
    return {"do_normalize": True, "size": {"shortest_edge": 800, "longest_edge": 1333}}


def picture(width: int = 2 * SIDE, height: int = SIDE) -> npt.NDArray[np.uint8]:
    """Return a black picture with a red square at (64, 0, 96, 32) and a blue one at (0, 32, 32, 64), BGR."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[0:32, 64:96] = (0, 0, 255)
    pixels[32:64, 0:32] = (255, 0, 0)
    return pixels


def jpeg(path: Path) -> Path:
    cv2.imwrite(str(path), picture())
    return path
