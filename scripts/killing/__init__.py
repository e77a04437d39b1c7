"""What `kill_and_restart.py` plays with: a service that is killed in all ways, jobs with known answers."""
