"""mallob-py: decentralized, malleable load balancing and SAT solving on MPI."""

__version__ = "0.1.0"
