"""Tests of the room `wts.kernels.resident`."""
