"""Runs on disk: written crash-safe by capture, read back as columns. No torch here."""
