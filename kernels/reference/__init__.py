"""The reference backend: plain torch over whole vectors, any device and dtype. Slow, short, and the oracle."""
