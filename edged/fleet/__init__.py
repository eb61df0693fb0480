"""Engines that equal boxes share in an object store.

bucket.py     the object store: every call ends in time
keys.py       the key that a box signs with, and the keys that it trusts
manifest.py   what is published about an engine, signed
leases.py     which of several equal boxes builds an engine
sharing.py    what the daemon does with all of it
shelf.py      what is in the store, for operators
"""
