"""Rounds of executor `device` without a card: what they launch, move and compile to."""
