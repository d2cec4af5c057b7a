"""Options of runs and methods: their schema, presets and capacities. Imports only `core.errors` and `core.randomness`."""
