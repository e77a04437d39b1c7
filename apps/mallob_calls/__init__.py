"""CALLS: calls of Python functions for an `Executor` (mallob_py.api.executor), to which workers connect.

app          the application
declaration  the application's declaration
fetching     objects that the executor shares
inner        calls that are submitted within calls
worker       a worker: one thread runs calls, another thread exchanges messages
"""

from mallob_calls.app import CallsApplication

__all__ = ["CallsApplication"]
