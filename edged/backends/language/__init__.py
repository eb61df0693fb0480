"""Runtimes of language models behind one contract. Only a language host imports them."""
