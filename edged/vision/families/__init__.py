"""Families of models; related families are in one file. `contract` defines what a family is, and `decoding` has the
steps that families share."""
