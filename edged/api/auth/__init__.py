"""Who may do what: who a client is, what it may, how much of it, and what is written down about it."""
