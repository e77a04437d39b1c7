"""A client's folder: the grammar of its names, the journal, incoming files and outgoing replies.

From `service.jobs` this package imports only the contents of files: job files and replies.
"""
