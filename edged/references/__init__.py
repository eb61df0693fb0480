"""References: addresses that stand for a model file wherever a command or the configuration takes one.

reference.py   parses references
sources.py     finds the files for which a reference stands, by scheme, and the settings that its source knows
transfer.py    downloads
kept.py        keeps the fetched files on this box, with their digests, so that each reference is fetched once
"""
