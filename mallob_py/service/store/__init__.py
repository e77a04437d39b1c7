"""A client's folder: the grammar of its names, the journal, files that come and replies that go.

Imports of `service.jobs` only what stands in the files: job files and replies.
"""
