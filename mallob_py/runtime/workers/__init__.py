"""Worker processes: the pool of a rank, what it holds of them, the server that forks them."""
