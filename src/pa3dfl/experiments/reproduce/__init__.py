"""The paper's evidence from one command: plan the runs, run them, keep a small record of each, render a page."""
