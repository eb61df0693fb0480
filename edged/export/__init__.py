"""`edged export`: exports a model of a training framework to an ONNX file that the boxes can serve. It also proves that
the file answers as the framework does.

    source.py      finds the exporter for a source; reads the names in pickles without unpickling
    frameworks/    the exporters, one file each; run in the user's own Python, which need not have edged
    child.py       starts the user's Python, limits its time and memory, and exchanges messages with it
    launcher.py    the program that `child.py` starts; it confines itself, then becomes the user's Python
    targets.py     the newest ONNX versions that the boxes support; checks whether the file is as requested
    proof.py       checks whether the file answers as the framework does
    run.py         the steps in order
"""
