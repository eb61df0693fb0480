"""Receives camera frames and tensor requests, and answers each with the engine that serves its model now.

stream → slot (schedule) → batch → link ··socket + shared memory··> host → pipeline (decode, prepare, infer, decode)
"""
