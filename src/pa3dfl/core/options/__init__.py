"""What a run can be told: options, their ranges, choices and help, presets, and the names that can be chosen."""
