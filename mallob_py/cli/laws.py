"""`mallob-py run --check-laws`: whether an application keeps what its workers rely on. Needs no ranks.

Exit code: 0 if all laws hold, 2 if one is broken, if there is none, or if the job cannot be read.
"""

from __future__ import annotations

import os

from mallob_py.applications import imported, place_of
from mallob_py.cli import CommandError
from mallob_py.cli.rank_options import RunOptions
from mallob_py.kit import Application, InputError, JobInput


def check_laws(options: RunOptions) -> int:
    name, configuration = options.application, options.whole_configuration
    try:
        application: Application = imported(place_of(name))()
        application.check(configuration)
        job = JobInput(tuple(map(os.path.abspath, options.files)), configuration=configuration)
        payload = application.read(job)
    except InputError as error:
        raise CommandError(error.message) from None
    except Exception as error:
        raise CommandError(f"{name} cannot be used: {type(error).__name__}: {error}") from error
    try:
        checked = application.check_laws(payload, configuration)
    except NotImplementedError as error:
        raise CommandError(str(error)) from None
    except Exception as error:
        raise CommandError(f"{name}: {error}") from error
    print(f"{name}: {checked}")
    return 0
