"""Endurance: does a daemon grow under everything that happens to it in a year?"""
