"""CALLS: calls of Python functions for an `Executor` (mallob_py.api.executor), which its workers connect to.

app          the application
declaration  its declaration
fetching     objects that the executor shares
inner        calls that are submitted within calls
worker       a worker: one thread runs calls, another thread exchanges messages
"""

from mallob_calls.app import CallsApplication

__all__ = ["CallsApplication"]
