"""Pictures to input tensors, and output tensors to detections.

Everything here is pure: bytes and arrays in, arrays and frozen structs out; no sockets, files, clocks or runtimes. It
runs in the engine host (the hot path) and, to recognise models only, in the daemon.

One picture: `image` decodes it; `prepare` writes it, or a region of it, into a slice of the input and returns its
`placement`; after inference a decoder of `families`, chosen by `family.recognise`, turns the outputs into `detections`
(boxes in pixels of the original picture, after `nms`, or classes); `draw` paints them.

A new detector family is a class in `families/`, listed with its rules in `family.py`.
"""
