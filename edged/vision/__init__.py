"""The vision room: encoded or raw pictures in, tensors and detections out.

Everything here is pure: bytes and arrays in, arrays and frozen structs out; no sockets, files, clocks or
runtimes. It runs in the engine host (the hot path) and, for recognition only, where a model is inspected.

The way of one picture: `image` decodes it, `prepare` writes it, or what a `view` shows of it, into a slice of the
input tensor and returns its `placement`, the runtime runs, a `families` decoder (found by `family.recognise`) turns
the outputs into `detections` in pixels of the original picture, with `nms`, or into `classifications`; `draw` paints
them.

A new detector family is one file in `families/` and its lines in the two tables of `family.py`.
"""
