"""The parts of `scripts/soak.py`: a service under watch, a random mix of jobs, rounds of them."""
