"""Flower as the transport: the same local work on other processes and machines. Needs the extra `pa3dfl[flower]`."""

import os

# Read by Flower and Ray when they are imported: neither reports home on our behalf.
for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}.items():
    os.environ.setdefault(_name, _value)
