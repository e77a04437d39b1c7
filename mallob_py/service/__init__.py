"""Jobs in, results out: job files, the client's directory and its journal, replies."""
