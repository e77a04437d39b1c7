"""Jobs as a client knows them: what their files say, which of them wait, and what each user may have.

Pure but for the records of crashes: no clock, no files, no threads.
"""
