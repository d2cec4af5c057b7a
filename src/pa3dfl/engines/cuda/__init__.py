"""The GPU engine: several clients at once, each as CUDA graphs on a stream of its own."""
