"""Capture: turns what a program computes into events. May import torch."""
