"""Tests of the room `wts.bench.serving`."""
