"""Access: the identity of clients, their roles and limits, and the audit log."""
