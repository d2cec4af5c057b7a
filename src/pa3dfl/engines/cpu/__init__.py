"""Several clients at once on a CPU, a thread each."""
