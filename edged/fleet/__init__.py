"""Engines that boxes with the same hardware and software share in an object store.

bucket.py     the object store; every call has a time limit
keys.py       the key with which a box signs, and the keys that it trusts
manifest.py   the signed description of a published engine
leases.py     decides which of several boxes builds an engine
sharing.py    finds, fetches and publishes engines for the daemon
shelf.py      lists, prunes and rolls back the engines in the store, for operators
"""
