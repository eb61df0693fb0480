"""Runtimes behind one contract. Each backend imports its runtime lazily, and only this room imports runtimes at all."""
