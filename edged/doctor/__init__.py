"""`edged doctor`: finds problems of this box and its models.

Each module has the checks of one subject: it reads facts and checks them with pure functions. No check changes the box.
"""
