"""Many PEs in virtual time, from a seed: the very same protocol code as on real ranks."""
