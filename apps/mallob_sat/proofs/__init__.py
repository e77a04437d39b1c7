"""Proofs of unsatisfiability: writing them while solving, and checking them independently."""
