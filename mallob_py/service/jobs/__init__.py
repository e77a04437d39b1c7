"""The jobs of a client: job files, rules of waiting, and limits of users.

Only the records of crashes touch files; the other modules use no clock, no files and no threads.
"""
