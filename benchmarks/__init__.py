"""Measurements side by side: `make bench` on a CPU, `python -m benchmarks.scale` for many clients."""
