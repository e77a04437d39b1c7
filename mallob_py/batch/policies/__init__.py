"""One file per family of policies."""
