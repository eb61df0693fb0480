"""`edged doctor`: what is wrong with this box and its models, before it is noticed.

A module for each family of checks reads plain facts and checks them with pure functions; nothing here changes the box.
"""
