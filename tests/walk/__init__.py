"""Tests of the room `wts.walk`."""
