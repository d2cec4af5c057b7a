"""Experiments: one run, several on equal terms, tuning, export, and the reproduction of the paper."""
