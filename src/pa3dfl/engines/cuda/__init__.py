"""Several clients at once on a GPU, as CUDA graphs on streams of their own."""
