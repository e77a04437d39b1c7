"""The ranks as one MPI world: launch, transport, doorbells, transfer of large inputs, lost ranks."""
