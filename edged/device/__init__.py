"""What this box is: facts about hardware, driver and runtimes, read below a root, and its devices."""
