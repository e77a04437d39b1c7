"""The jobs of a client: their files, their waiting, and their users' limits.

Pure except for the records of crashes: no clock, no files, no threads.
"""
