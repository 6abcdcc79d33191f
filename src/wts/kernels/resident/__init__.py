"""The resident family: weights stay in registers and shared memory for the whole walk."""
