"""Sources of workloads."""
