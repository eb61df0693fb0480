"""`edged fleet rollout`: a change goes to a few boxes first, and is undone if it does harm.

plan.py       waves of boxes, and the rules that end a rollout. Pure
changes.py    the kinds of changes, and how each is taken back
record.py     the record of a rollout: a file that an auditor can read, and from which a later command continues
run.py        carries out a rollout
commands.py   the command line
"""
