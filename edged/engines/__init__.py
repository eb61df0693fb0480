"""Control: compares what should be with what is, and does what is missing. Decisions are pure; effects come after."""
