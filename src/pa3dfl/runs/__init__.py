"""A run on disk: its format, written and read here, and what people see of it: tables and pictures."""
