"""Control: compare the desired state with the actual one and do what is missing. Decisions are pure."""
