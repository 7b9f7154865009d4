"""`fastfed bench rounds`: whole rounds beside their peers."""
