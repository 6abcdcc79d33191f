"""GPUs as a planner sees them, and structs that host and kernel share."""
