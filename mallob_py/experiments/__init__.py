"""Measurements that answer questions of design, on this machine, without MPI."""
