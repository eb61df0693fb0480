"""Converts pictures to input tensors, and output tensors to detections.

This package is pure: functions get bytes and arrays, and return arrays and frozen structs, without sockets, files,
clocks or runtimes. The code runs in engine hosts (the processes that run models), in one-shot child processes and in
clients. The daemon uses the code to recognise models, decode sound and choose crops. Only `families.third_party` is not
pure: in hosts and child processes, it imports code of other packages.

First, `image` decodes a picture. `prepare` writes the picture, or a region of it, into a slice of the input tensor and
returns the `placement` of the picture. After inference, a decoder in `families`, chosen by `family.recognise`, converts
the outputs to `detections` (boxes in pixels of the original picture, after `nms`) or to a `content`, an answer about
the whole picture. `draw` draws detections and contents.

A family is code that recognises one kind of model and decodes its outputs. A new family is a class in `families/`,
listed with its rules in `family.py`.
"""
