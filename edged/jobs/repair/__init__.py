"""Repairs models that cannot be served as exported: the opset or IR version is too new, or dimensions are wrong.

    lowering.py   converts the model to an older opset or IR version, one version at a time
    nodes.py      converts a single node to the previous version
    dims.py       finds by trying which dimensions an input really accepts
    simplify.py   folds constants with onnxslim
    proof.py      checks whether the original and the repaired model give the same answers

Each step is a job of a child. `engines/repairer.py` decides on the steps and their order, and starts the proof of each
step before the next step. Models are repaired only on request. `edged.models.repair.Record` lists the steps.
"""
