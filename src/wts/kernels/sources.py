"""The files that a kernel is compiled from."""

from __future__ import annotations

from importlib import resources

__all__ = ["read_sources"]

_SOURCES = (
    "walk.cu",
    "service.cuh",
    "inner.cuh",
    "own_units.cuh",
    "latents.cuh",
    "exact.cuh",
    "cells.cuh",
    "activations.cuh",
    "sweep.cuh",
    "product_mma.cuh",
    "lone_ring.cuh",
    "product_wgmma.cuh",
    "product_tcgen05.cuh",
    "offer.cuh",
    "ring.cuh",
    "rounds.cuh",
    "exchange.cuh",
    "noise.cuh",
    "select.cuh",
    "layout.cuh",
    "ptx.cuh",
)


def read_sources() -> dict[str, str]:
    folder = resources.files("wts") / "csrc"
    return {name: (folder / name).read_text() for name in _SOURCES}
