"""Applications that compute nothing, to measure and test the scheduling alone."""

from __future__ import annotations

from mallob_dummy.app import NoopApplication, SleepApplication

__all__ = ["NoopApplication", "SleepApplication"]
