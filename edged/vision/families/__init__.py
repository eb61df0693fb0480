"""Families of models. Related families are in one file. `contract` has the interface of a family, and `decoding` has
the steps that families share."""
