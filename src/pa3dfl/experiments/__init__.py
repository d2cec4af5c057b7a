"""What researchers start: one run, many on equal terms, tuning, the paper's evidence."""
