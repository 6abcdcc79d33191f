"""From a request to a kernel on a GPU: plans, packing, compiling, launching."""
