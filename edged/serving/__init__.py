"""Receives camera frames and tensor requests, and answers each with the engine that serves its model now.

stream → slot (schedule) → batch → link ··socket + shared memory··> host → pipeline

The pipeline decodes pictures, prepares the inputs of the engine, runs the engine, and decodes the engine's outputs.
"""
