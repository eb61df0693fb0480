"""Repairs of models that cannot be served as they are: an opset or file format too new, dimensions declared wrongly.

    lowering.py   the model in an older opset or IR version, one version at a time
    nodes.py      a single node in the version before
    dims.py       what an input really takes, found by trying
    simplify.py   constants folded by onnxslim
    proof.py      whether original and repaired model answer alike

Each is a child's job; `engines/repairer.py` decides which, in which order, and has each proven before the next. Repairs
are made only on request; `edged.models.repair.Record` says what was done.
"""
