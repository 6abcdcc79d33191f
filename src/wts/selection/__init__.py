"""How a token is chosen of a step's logits."""
