"""Serving: from a camera's newest frame, or a tensor request, to an answer from whatever engine serves the model now.

stream → schedule → slot → link ··socket + shared memory··> host → pipeline (decode, prepare, infer, decode)
"""
