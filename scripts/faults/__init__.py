"""The parts of `scripts/chaos.py`: a service under watch, jobs with known answers, faults, campaigns."""
