"""`edged doctor`: finds problems of this box and its models.

Each module has one family of checks: it reads facts and checks them with pure functions. Nothing here changes the box.
"""
