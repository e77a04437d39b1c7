"""The environment variables by which a process learns that it is a rank. This module imports nothing."""

from __future__ import annotations

#: variable set by `launch_world`: the file into which rank 0's exit code is written
EXIT_FILE_VARIABLE = "MALLOB_PY_EXIT_FILE"
#: variable of a process that is to join a running system; its standard input says how (`protocol/joining.py`)
INVITED_VARIABLE = "MALLOB_PY_INVITED"
#: variables with a rank's number, set by the launchers of MPICH, PMIx, Open MPI and MVAPICH
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "PMI_ID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
#: variables with the number of ranks; without SLURM_NTASKS, which is set in every batch script
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
#: SIZE_VARIABLES that are valid only within a step of Slurm
OF_SLURM_STEPS = ("SLURM_STEP_NUM_TASKS",)
#: variables of ranks: each rank has at least one, and a process that a user has started has none
OF_RANKS = (*RANK_VARIABLES, EXIT_FILE_VARIABLE, INVITED_VARIABLE)
#: prefixes of the variables that connect a rank with its launcher, which the rank's children must not inherit
PREFIXES = ("PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_")
