"""Options of runs and methods: their schema, presets and capacities. Imports `core.errors` and `core.randomness`."""
