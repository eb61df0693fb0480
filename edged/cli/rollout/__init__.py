"""`edged fleet rollout`: a change goes to a few boxes first, and is taken back if it does harm.

plan.py       waves of boxes, and the rules that end a rollout. Pure
changes.py    what can be rolled out, and how it is taken back
record.py     the record of a rollout, in a file: what a later command continues, and what an auditor reads
run.py        carries a rollout out
commands.py   the command line
"""
