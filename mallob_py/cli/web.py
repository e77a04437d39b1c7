"""`mallob-py web`: the service over HTTP, with a page to see and steer it.

A process of its own, beside the service or on any host that shares the api folder; it may start
before the service and outlive it. Exit code 0 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import WebOptions


def run(options: WebOptions) -> int:
    try:
        from mallob_py.web.receiving import Limits
        from mallob_py.web.server import serve
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing; install it: pip install starlette uvicorn") from None
    if options.allow_paths is not None and not Path(options.allow_paths).is_dir():
        raise CommandError(f"--allow-paths {options.allow_paths} is no folder")
    serve(
        Path(options.api_dir),
        options.client,
        options.host,
        options.port,
        None if options.token_file is None else Path(options.token_file),
        None if options.allow_paths is None else Path(options.allow_paths),
        Limits(options.upload_limit_bytes, options.formula_limit_bytes, options.store_limit_bytes),
    )
    return 0
