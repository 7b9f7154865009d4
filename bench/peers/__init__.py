"""What FastFed is timed against: optimizers of other libraries, and other ways to train a cohort."""
