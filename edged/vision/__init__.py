"""Converts pictures to input tensors, and output tensors to detections.

Everything here is pure: functions take bytes and arrays, and return arrays and frozen structs. They use no sockets,
files, clocks or runtimes. This code runs in the engine host (the hot path), in children and in clients. The daemon uses
it to recognise models, decode sound and choose crops. The exception is `families.third_party`: in hosts and children it
imports families of other packages.

Path of a picture: `image` decodes it. `prepare` writes it, or a region of it, into a slice of the input and returns its
`placement`. After inference, a decoder in `families`, chosen by `family.recognise`, converts the outputs to
`detections` (boxes in pixels of the original picture, after `nms`) or classes. `draw` draws them.

A new detector family is a class in `families/`, listed with its rules in `family.py`.
"""
