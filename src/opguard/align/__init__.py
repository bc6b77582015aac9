"""Alignment: order-preserving pairs and gaps between two runs (DESIGN section 6)."""
