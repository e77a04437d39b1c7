"""A rank's PEs on real hardware: the event loop (`rank`), its start and end (`boot`)."""
