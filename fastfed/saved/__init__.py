"""What is on disk of a run, and how it becomes a run again."""
