"""The environment variables by which launchers and we tell processes that they are ranks. Imports nothing."""

from __future__ import annotations

#: set by `launch_world`: the file that takes rank 0's exit code
EXIT_FILE_VARIABLE = "MALLOB_PY_EXIT_FILE"
#: set for a process that is to join a running system, as standard input tells it (see `protocol/joining.py`)
INVITED_VARIABLE = "MALLOB_PY_INVITED"
#: its number, as the launchers of MPICH, PMIx, Open MPI and MVAPICH tell each rank
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "PMI_ID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
#: the number of ranks. Not SLURM_NTASKS, which is set in every batch script
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
#: of these, the one that holds only within a step of Slurm
OF_SLURM_STEPS = ("SLURM_STEP_NUM_TASKS",)
#: a process with one of these is a rank, and nothing that a user has started
OF_RANKS = (*RANK_VARIABLES, EXIT_FILE_VARIABLE, INVITED_VARIABLE)
#: the beginnings of all that connects a rank with its launcher, which its children must not have
PREFIXES = ("PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_")
