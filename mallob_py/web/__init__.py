"""The service over HTTP: a client of the api folder like any other, in a process of its own.

Needs the extra `web` (starlette and uvicorn). No rank imports this.
"""
