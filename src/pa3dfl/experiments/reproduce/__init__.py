"""Repeats the paper's experiments: plans the runs, runs them, keeps a small record of each, writes a page."""
