"""The jobs of a client: their files, which of them wait, and what each user may have.

Pure except for the records of crashes: no clock, no files, no threads.
"""
