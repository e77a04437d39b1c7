"""CALLS: calls of Python functions for an `Executor` (mallob_py.api.executor), which its workers connect to.

app          the application
declaration  what it declares
inner        calls that calls want
worker       a worker: one thread calls, another one talks
"""

from mallob_calls.app import CallsApplication

__all__ = ["CallsApplication"]
