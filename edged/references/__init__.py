"""References: addresses that stand for a model file wherever a command or the configuration takes one.

reference.py   what a reference says
sources.py     which files it stands for, by scheme, and the settings that its source knows
transfer.py    downloads
kept.py        the files on this box, with their digests: fetched once, never looked up again
"""
