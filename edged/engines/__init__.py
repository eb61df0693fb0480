"""Control: compares the actual state with the desired state, and acts on the differences. Decisions are pure."""
