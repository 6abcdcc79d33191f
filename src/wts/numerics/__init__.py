"""The arithmetic of the contract (docs/numerics.md): knows no head and no plan."""
