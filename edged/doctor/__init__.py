"""What is wrong with this box and its models, before anybody asks why nothing works.

Each family of checks has a file: it reads plain facts at its edge, and pure functions judge them. What may hang or
crash is asked in a thread or a child (`examination.py`); nothing here changes the box.
"""
