"""References: addresses of model files, which commands and the configuration accept instead of paths.

reference.py   parses references
sources.py     finds, for each scheme, the files of a reference, and the model settings that its source states
transfer.py    downloads files
kept.py        keeps the fetched files on this box, with their digests, so that each reference is fetched once
"""
