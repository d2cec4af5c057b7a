"""The engine flower: local training in other processes and on other machines. Needs the extra `pa3dfl[flower]`."""

import os

# Disable the telemetry of Flower and Ray, which read these variables when they are imported.
for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}.items():
    os.environ.setdefault(_name, _value)
