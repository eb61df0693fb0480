"""The tensors of popular exports, and what edged says about each: a family, a kind, or the settings that decide.

Where a row names no other source, names and shapes are from the Open Model Zoo's models/public and models/intel
(README of each model). Others: [zoo] the ONNX model zoo's validated/vision; [optimum] `_TASK_TO_COMMON_OUTPUTS` and
`model_configs.py` of optimum-onnx (commit 1939f27); [opencv] the script of a model in opencv/opencv_zoo; [rknn] README
of a model in airockchip/rknn_model_zoo, or the tensors in example/yolov8/README.md of swdee/go-rknnlite; [own] the
exporter's own repository: facebookresearch/segment-anything, facebookresearch/detr, snakers4/silero-vad,
biubug6/Pytorch_Retinaface, fabio-sim/LightGlue-ONNX, argman/EAST, clovaai/CRAFT-pytorch; [transformers.js] see
`families.prompted`. [common] is a form that is well known, but not read in a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edged.tensors import TensorSpec
from edged.vision.family import Recognition, recognise

_TENSOR = re.compile(r"(?P<name>\S+?)(?::(?P<datatype>[A-Z]+\d+))?\s*\[(?P<dims>[^\]]*)\]")


@dataclass(frozen=True)
class Row:
    """One export. The outcome is its `family`; or no family, a `kind`, and `between`, the families among which a
    setting decides, in order. `near` are words of the reason."""

    inputs: str
    outputs: str
    family: str | None = None
    kind: str = ""
    between: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    operators: frozenset[str] | None = None
    heads: Mapping[str, str] | None = None

    @property
    def recognition(self) -> Recognition:
        return recognise(tensors(self.inputs), tensors(self.outputs), self.metadata, {}, self.operators, self.heads)


def tensors(text: str) -> tuple[TensorSpec, ...]:
    """Parse tensors as the table writes them: `name:DATATYPE [dims], ...`; FP32 without a datatype."""
    return tuple(
        TensorSpec(found["name"], found["datatype"] or "FP32", tuple(_dims(found["dims"])))
        for found in _TENSOR.finditer(text)
    )


def _dims(text: str) -> Iterator[int | str]:
    for dim in filter(None, (each.strip() for each in text.split(","))):
        yield int(dim) if dim.isdecimal() else dim


def _levels(*channels: int, size: int = 640, strides: tuple[int, ...] = (8, 16, 32)) -> str:
    return ", ".join(f"o{s}_{i} [1,{c},{size // s},{size // s}]" for s in strides for i, c in enumerate(channels))


def _cache(name: str, length: str) -> str:
    return ", ".join(f"{name}.{layer}.{part} [b,8,{length},64]" for layer in range(24) for part in ("key", "value"))


_IMAGES = "images [1,3,640,640]"
_IDS = "input_ids:INT64 [b,s], attention_mask:INT64 [b,s]"
_YUNET = ", ".join(
    f"{kind}_{s} [1,{(640 // s) ** 2},{columns}]"
    for kind, columns in {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}.items()
    for s in (8, 16, 32)
)
_NAMES = {"names": str({number: f"class {number}" for number in range(80)}), "stride": "32"}

TABLE: dict[str, Row] = {
    # Recognised: the table of edged's own exports is `vision_exports.EXPORTS`.
    "yolox-tiny": Row("images [1,3,416,416]", "output [1,3549,85]", "yolox", operators=frozenset({"Conv"})),
    "nanodet-m-1.5x-416": Row("data [1,3,416,416]", "output [1,3549,112]", "nanodet"),
    "mask_rcnn_resnet50_atrous_coco": Row(
        "image_tensor:UINT8 [1,800,1365,3]",
        "detection_classes [1,100], detection_scores [1,100], detection_boxes [1,100,4], num_detections [1],"
        " detection_masks [1,100,33,33]",
        "ssd",
    ),
    "regnetx-3.2gf": Row("data [1,3,224,224]", "prob [1,1000]", "classification"),
    "hbonet-0.25": Row("input [1,3,224,224]", "output [1,1000]", "classification"),
    "open-closed-eye-0001": Row("input.1 [1,3,32,32]", "19 [1,2,1,1]", between=("classification",)),
    "anti-spoof-mn3": Row("actual_input_1 [1,3,128,128]", "output1 [1,2]", between=("classification",)),
    # A setting decides.
    "detr, own repository [own]": Row(
        "inputs [1,3,800,800]",
        "pred_logits [1,100,92], pred_boxes [1,100,4]",
        between=("detr", "deformable-detr", "rtdetr-transformers"),
    ),
    "detr-resnet50, logits": Row(
        "input [1,3,800,1137]",
        "scores [1,100,92], boxes [1,100,4]",
        operators=frozenset({"MatMul", "Add", "Sigmoid"}),
        heads={"scores": "Add", "boxes": "Sigmoid"},
        near=("SSD",),
    ),
    "faceboxes-pytorch": Row(
        "input.1 [1,3,1024,1024]",
        "boxes [1,21824,4], scores [1,21824,2]",
        operators=frozenset({"Conv", "Softmax"}),
        between=("ssd",),
    ),
    "mmdet with masks [common]": Row(
        "input [1,3,800,1344]",
        "dets [1,100,5], labels:INT64 [1,100], masks [1,100,28,28]",
        between=("rtmdet", "mmdet"),
    ),
    "yolov8-seg without metadata [common]": Row(
        _IMAGES, "output0 [1,116,8400], output1 [1,32,160,160]", between=("ultralytics-segment",)
    ),
    "yolov9, two heads without metadata [common]": Row(
        _IMAGES, "output0 [1,84,8400], 1770 [1,84,8400]", between=("ultralytics",)
    ),
    "rtmdet, joined heads [common]": Row(_IMAGES, _levels(84), kind="grids", between=("rtmdet", "mmdet")),
    "yolov5, rknn [rknn]": Row(_IMAGES, _levels(255), kind="grids", between=("rtmdet", "mmdet")),
    "a feature pyramid [common]": Row(_IMAGES, _levels(256), kind="grids", between=("rtmdet", "mmdet")),
    "centernet with one class [common]": Row(
        "input [1,3,512,512]",
        "hm [1,1,128,128], wh [1,2,128,128], reg [1,2,128,128]",
        kind="centernet",
        between=("centerface",),
    ),
    "yolov8, a table with rows for columns [common]": Row(_IMAGES, "output0 [1,8400,84]", between=("yolox", "yolov6")),
    "yolov8, the same with names [common]": Row(_IMAGES, "output0 [1,8400,84]", near=("ultralytics",), metadata=_NAMES),
    "six columns [common]": Row(
        _IMAGES, "output0 [1,300,6]", between=("ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo")
    ),
    "arcface": Row("data [1,3,112,112]", "fc1 [1,512]", between=("arcface", "sface", "classification")),
    "vehicle-reid-0001": Row("input [1,3,208,208]", "output [1,512]", between=("classification", "embedding")),
    "facial-landmarks-35-adas-0002": Row(
        "data [1,3,60,60]", "align_fc3 [1,70]", between=("classification", "embedding")
    ),
    # Near to a family.
    "yunet without an output [own]": Row(
        "input [1,3,640,640]", _YUNET.replace("kps_8 [1,6400,10], ", ""), near=("yunet", "kps_8")
    ),
    "yunet with other columns [own]": Row(
        "input [1,3,640,640]", _YUNET.replace(",10]", ",8]"), near=("yunet", "kps_8", "[1,6400,8]")
    ),
    "mmrotate [common]": Row(
        "input [1,3,1024,1024]", "dets [1,2000,6], labels:INT64 [1,2000]", near=("rtmdet", "mmdet", "[1,2000,6]")
    ),
    # Boxes in other forms.
    "yunet, 2022 [opencv]": Row("input [1,3,120,160]", "loc [p,14], conf [p,2], iou [p,1]", kind="yunet-2022"),
    "retinaface [own]": Row(
        "input0 [1,3,640,640]", "output0 [1,16800,4], 590 [1,16800,2], 589 [1,16800,10]", kind="retinaface"
    ),
    "retinaface-resnet50-pytorch": Row(
        "data [1,3,640,640]",
        "face_rpn_cls_prob [1,16800,2], face_rpn_bbox_pred [1,16800,4], face_rpn_landmark_pred [1,16800,10]",
        kind="retinaface",
    ),
    "palm detection [opencv]": Row(
        "input_1 [1,192,192,3]", "Identity [1,2016,18], Identity_1 [1,2016,1]", kind="anchor-boxes"
    ),
    "hand pose [opencv]": Row(
        "input_1 [1,224,224,3]",
        "Identity [1,63], Identity_1 [1,1], Identity_2 [1,1], Identity_3 [1,63]",
        kind="landmarks",
    ),
    "yolov8, rknn [rknn]": Row(_IMAGES, _levels(64, 80, 1), kind="raw-heads"),
    "yolov6, rknn [rknn]": Row(_IMAGES, _levels(4, 80, 1), kind="raw-heads"),
    "yolov4 [zoo]": Row(
        "input_1:0 [1,416,416,3]",
        "Identity:0 [1,52,52,3,85], Identity_1:0 [1,26,26,3,85], Identity_2:0 [1,13,13,3,85]",
        kind="raw-heads",
    ),
    "yolo-v4-tf": Row(
        "image_input [1,608,608,3]",
        "conv2d_93/BiasAdd [1,76,76,255], conv2d_101/BiasAdd [1,38,38,255], conv2d_109/BiasAdd [1,19,19,255]",
        kind="raw-heads",
    ),
    "retinanet [zoo]": Row(
        "input [1,3,480,640]",
        ", ".join(
            f"{kind}{i} [1,{channels},{h},{w}]"
            for kind, channels in (("cls", 720), ("box", 36))
            for i, (h, w) in enumerate(((60, 80), (30, 40), (15, 20), (8, 10), (4, 5)))
        ),
        kind="raw-heads",
    ),
    "tinyyolov2 [zoo]": Row("image [1,3,416,416]", "grid [1,125,13,13]", kind="grids"),
    "yolo-v3-tiny-onnx": Row(
        "input_1 [1,3,416,416], image_shape [1,2]",
        "yolonms_layer_1 [1,2535,4], yolonms_layer_1:1 [1,80,2535], yolonms_layer_1:2:INT32 [1,1600,3]",
        kind="yolov3-keras",
    ),
    "ctdet_coco_dlav0_512": Row(
        "input.1 [1,3,512,512]",
        "center_heatmap [1,80,128,128], width_height [1,2,128,128], regression [1,2,128,128]",
        kind="centernet",
    ),
    "yolov5-seg [common]": Row(_IMAGES, "output0 [1,25200,117], output1 [1,32,160,160]", kind="instance-segmentation"),
    "ssd [zoo]": Row(
        "image [1,3,1200,1200]", "bboxes [1,nbox,4], labels:INT64 [1,nbox], scores [1,nbox]", kind="detections"
    ),
    "faster-rcnn [zoo]": Row(
        "image [3,height,width]", "6379 [nbox,4], 6381:INT64 [nbox], 6383 [nbox]", kind="detections"
    ),
    "horizontal-text-detection-0001": Row(
        "image [1,3,704,704]", "boxes [100,5], labels:INT64 [100]", kind="detections"
    ),
    # Pictures and maps.
    "super-resolution, sub_pixel_cnn [zoo]": Row(
        "input [n,1,224,224]", "output [n,1,672,672]", kind="super-resolution"
    ),
    "single-image-super-resolution-1032": Row(
        "0 [1,3,270,480], 1 [1,3,1080,1920]", "output [1,3,1080,1920]", kind="super-resolution"
    ),
    "real-esrgan, open [common]": Row("input [b,3,w,h]", "output [b,3,w4,h4]", kind="picture"),
    "fast-neural-style-mosaic-onnx": Row(
        "input1 [1,3,224,224]",
        "output1 [1,3,224,224]",
        kind="picture",
        between=("segmentation", "paddleseg"),
        near=("returns a picture",),
    ),
    "colorization-v2": Row(
        "data_l [1,1,256,256]",
        "color_ab [1,2,256,256]",
        kind="color",
        between=("segmentation", "paddleseg"),
        near=("colours a picture",),
    ),
    "lama [opencv]": Row("image [1,3,512,512], mask [1,1,512,512]", "output [1,3,512,512]", kind="inpainting"),
    "robust-video-matting-mobilenetv3": Row(
        "src [1,3,720,1280], r1 [1,16,144,256], r2 [1,20,72,128], r3 [1,20,36,64], r4 [1,20,18,32]",
        "pha [1,1,720,1280], fgr [1,3,720,1280], rr1 [1,16,144,256]",
        kind="matting",
    ),
    "modnet-photographic-portrait-matting": Row(
        "input [1,3,512,512]", "output [1,1,512,512]", between=("depth", "depth-metric", "segmentation", "dbnet")
    ),
    "modnet, ending in a sigmoid": Row(
        "input [1,3,512,512]",
        "output [1,1,512,512]",
        heads={"output": "Sigmoid"},
        between=("depth", "depth-metric", "segmentation", "dbnet"),
    ),
    "u2net, without a sigmoid": Row(
        "input [1,3,320,320]",
        "output [1,1,320,320]",
        heads={"output": "Conv"},
        between=("depth", "depth-metric", "segmentation"),
    ),
    "f3net": Row(
        "input.1 [1,3,352,352]",
        "saliency_map [1,1,352,352]",
        between=("depth", "depth-metric", "segmentation", "dbnet"),
    ),
    "f3net, of another size": Row(
        "input.1 [1,3,360,360]", "saliency_map [1,1,360,360]", between=("depth", "depth-metric", "segmentation")
    ),
    "deeplabv3": Row("ImageTensor:UINT8 [1,513,513,3]", "ArgMax:INT64 [1,513,513]", "segmentation"),
    "text detection, ppocr [common]": Row(
        "x [b,3,h,w]", "sigmoid_0.tmp_0 [b,1,h,w]", between=("dbnet", "depth", "depth-metric", "segmentation")
    ),
    "text detection, ppocr, with its graph [common]": Row(
        "x [b,3,h,w]",
        "sigmoid_0.tmp_0 [b,1,h,w]",
        "dbnet",
        operators=frozenset({"Conv", "ConvTranspose", "Sigmoid"}),
        heads={"sigmoid_0.tmp_0": "Sigmoid"},
    ),
    "midasnet": Row("image [1,3,384,384]", "inverse_depth [1,384,384]", between=("depth",)),
    "depth estimation [optimum]": Row(
        "pixel_values [b,3,h,w]", "predicted_depth [b,h,w]", between=("depth", "depth-metric")
    ),
    "semantic segmentation [optimum]": Row("pixel_values [b,3,512,512]", "logits [b,150,128,128]", "segmentation"),
    "fcn [zoo]": Row("input [1,3,520,520]", "out [1,21,520,520], aux [1,21,520,520]", "segmentation"),
    "east, tensorflow [own]": Row(
        "images [1,320,640,3]", "score [1,80,160,1], geometry [1,80,160,5]", kind="east", near=("EAST",)
    ),
    "east, channels first [common]": Row(
        "images [1,3,320,640]", "score [1,1,80,160], geometry [1,5,80,160]", kind="east", near=("EAST",)
    ),
    "craft [own]": Row(
        "images [1,3,320,640]", "y [1,160,320,2], feature [1,32,160,320]", kind="craft", near=("CRAFT",)
    ),
    "text-detection-0004": Row(
        "Placeholder [1,768,1280,3]",
        "model/link_logits_/add [1,192,320,16], model/segm_logits/add [1,192,320,2]",
        kind="text-detection",
    ),
    "text-recognition-resnet-fc": Row("input [1,1,32,100]", "output [1,26,37]", between=("ctc", "parseq")),
    "human-pose-estimation-0001": Row(
        "data [1,3,256,456]",
        "Mconv7_stage2_L1 [1,38,32,57], Mconv7_stage2_L2 [1,19,32,57]",
        kind="part-affinity",
    ),
    "higher-hrnet-w32-human-pose-estimation": Row(
        "image [1,3,512,512]", "heatmaps [1,17,256,256], embeddings [1,17,256,256]", kind="associative-embedding"
    ),
    "optical flow, raft [opencv]": Row(
        "0 [1,3,360,480], 1 [1,3,360,480]", "low [1,2,45,60], up [1,2,360,480]", kind="optical-flow"
    ),
    # Prompts, features, attributes.
    "sam, encoder [own]": Row("images [1,3,1024,1024]", "embeddings [1,256,64,64]", kind="promptable-segmentation"),
    "sam, decoder [own]": Row(
        "image_embeddings [1,256,64,64], point_coords [1,n,2], point_labels [1,n], mask_input [1,1,256,256],"
        " has_mask_input [1], orig_im_size [2]",
        "masks [1,1,1500,2250], iou_predictions [1,1], low_res_masks [1,1,256,256]",
        kind="promptable-segmentation",
    ),
    "sam, encoder [optimum]": Row(
        "pixel_values [b,3,1024,1024]",
        "image_embeddings [b,256,64,64], image_positional_embeddings [b,256,64,64]",
        kind="promptable-segmentation",
    ),
    "lightglue [own]": Row("images [2,1,512,512]", "keypoints [2,1024,2], matches [m,3], mscores [m]", kind="matching"),
    "vit, features [optimum]": Row(
        "pixel_values [b,3,224,224]", "last_hidden_state [b,197,768]", between=("dinov2", "embedding")
    ),
    "clip, image encoder [optimum]": Row(
        "pixel_values [b,3,224,224]", "image_embeds [b,512], last_hidden_state [b,50,768]", "clip"
    ),
    "head-pose-estimation-adas-0001": Row("data [1,3,60,60]", "fc_y [1,1], fc_p [1,1], fc_r [1,1]", kind="attributes"),
    "age-gender-recognition-retail-0013": Row("data [1,3,62,62]", "fc3_a [1,1,1,1], prob [1,2,1,1]", kind="attributes"),
    # No pictures.
    "a language model [optimum]": Row(
        f"{_IDS}, {_cache('past_key_values', 'p')}",
        f"logits [b,s,32000], {_cache('present', 't')}",
        kind="language-model",
    ),
    "bert [optimum]": Row(f"{_IDS}, token_type_ids:INT64 [b,s]", "last_hidden_state [b,s,768]", kind="text"),
    "clip [optimum]": Row(
        "input_ids:INT64 [t,s], pixel_values [i,3,224,224], attention_mask:INT64 [t,s]",
        "logits_per_image [i,t], logits_per_text [t,i], text_embeds [t,512], image_embeds [i,512]",
        kind="picture-and-text",
    ),
    "owl-vit [optimum]": Row(
        "input_ids:INT64 [t,s], pixel_values [i,3,768,768], attention_mask:INT64 [t,s]",
        "logits [i,576,t], pred_boxes [i,576,4], text_embeds [t,1,512], image_embeds [i,24,24,768]",
        between=("owlvit", "owlv2"),
        near=("set prompts",),
    ),
    "grounding dino [transformers.js]": Row(
        "pixel_values [b,3,800,800], input_ids:INT64 [b,s], token_type_ids:INT64 [b,s], attention_mask:INT64 [b,s],"
        " pixel_mask:INT64 [b,800,800]",
        "logits [b,900,256], pred_boxes [b,900,4]",
        near=("Grounding DINO", "set prompts"),
    ),
    "silero-vad [own]": Row(
        "input [n,l], state [2,n,128], sr:INT64 []", "output [n,1], stateN [2,n,128]", family="silero-vad"
    ),
    "silero-vad, 16 kHz only [own]": Row(
        "input [b,s], state [2,b,128]", "output [b,1], stateN [x,b,y]", family="silero-vad"
    ),
    "silero-vad, a sequence [own]": Row(
        "input [l,576], h [1,1,128], c [1,1,128]", "speech_probs [l], hn [1,x,128], cn [1,x,128]", kind="voice-activity"
    ),
    "speech recognition [optimum]": Row("input_values [b,l]", "logits [b,t,32]", kind="audio"),
    "whisper, encoder [optimum]": Row("input_features [b,80,3000]", "last_hidden_state [b,1500,384]", kind="audio"),
    "aclnet": Row(
        "input [1,1,1,16000]",
        "output [1,53]",
        kind="audio",
        between=("classification", "embedding"),
        near=("a model of sound",),
    ),
    # Nothing that edged knows.
    "five dimensions": Row(_IMAGES, "a [1,7,9,11,2]"),
    "a table of another length": Row(_IMAGES, "output0 [1,84,8401]"),
}
