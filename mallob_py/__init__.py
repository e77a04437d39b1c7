"""mallob-py: decentralized, malleable load balancing and SAT solving on MPI."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself is not imported, which would delay the start of every command
if TYPE_CHECKING:
    from typing import Any

    from mallob_py.api.async_client import AsyncClient
    from mallob_py.api.client import Answer, Client, FormulaExecutor, JobError, JobFuture, solve
    from mallob_py.api.cpmpy_solver import register_cpmpy_solver as register_cpmpy_solver
    from mallob_py.api.executor import Executor, Shared, report_progress
    from mallob_py.api.incremental import IncrementalSolver, Ipasir
    from mallob_py.api.joblib_backend import register_joblib_backend as register_joblib_backend
    from mallob_py.api.maxsat import RC2, Ipamir

#: public names except those in `_NEEDS`, so that a star import needs no optional package
__all__ = [
    "RC2",
    "Answer",
    "AsyncClient",
    "Client",
    "Executor",
    "FormulaExecutor",
    "IncrementalSolver",
    "Ipamir",
    "Ipasir",
    "JobError",
    "JobFuture",
    "Shared",
    "report_progress",
    "solve",
]
__version__ = "0.1.0"

_HOMES = {
    "Answer": "mallob_py.api.client",
    "AsyncClient": "mallob_py.api.async_client",
    "Client": "mallob_py.api.client",
    "Executor": "mallob_py.api.executor",
    "FormulaExecutor": "mallob_py.api.client",
    "IncrementalSolver": "mallob_py.api.incremental",
    "Ipamir": "mallob_py.api.maxsat",
    "Ipasir": "mallob_py.api.incremental",
    "JobError": "mallob_py.api.client",
    "JobFuture": "mallob_py.api.client",
    "register_cpmpy_solver": "mallob_py.api.cpmpy_solver",
    "register_joblib_backend": "mallob_py.api.joblib_backend",
    "report_progress": "mallob_py.api.executor",
    "RC2": "mallob_py.api.maxsat",
    "Shared": "mallob_py.api.executor",
    "solve": "mallob_py.api.client",
}
#: name -> command that installs the optional package that the name needs
_NEEDS = {
    "register_cpmpy_solver": "pip install 'mallob-py[cpmpy]'",
    "register_joblib_backend": "pip install joblib",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, since thousands of ranks import this package and use none."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mallob_py' has no attribute '{name}'")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if name not in _NEEDS:
            raise
        raise ModuleNotFoundError(f"{name} needs {error.name}: {_NEEDS[name]}", name=error.name) from None
