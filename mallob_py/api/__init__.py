"""The service from Python: `from mallob_py import Client`."""
