"""Serial heads: frozen weights with checked shapes, their formulas, and how they are read."""
