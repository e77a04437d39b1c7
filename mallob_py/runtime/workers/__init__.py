"""Worker processes: the pool of a rank, its records of them, the server that forks them."""
