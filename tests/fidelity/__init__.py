"""Tests of the room `wts.fidelity`."""
