"""The modules of `scripts/chaos.py`: a watched service, jobs with known answers, faults, campaigns."""
