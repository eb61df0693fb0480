"""`edged export`: from a model of a training framework to an ONNX file that the boxes can serve, proven against the
framework.

    source.py      which exporter a source needs; reads the names in pickles without executing them
    frameworks/    the exporters, one file each; run in the user's own Python, which need not have edged
    child.py       the parent's end of that Python: confinement, limits, messages
    launcher.py    confines itself, then becomes that Python
    targets.py     what the boxes take
    written.py     whether the file is what was asked for
    proof.py       whether the file answers as the framework does
    run.py         the steps in order
"""
