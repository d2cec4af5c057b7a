"""Pa3dFL: personal models for devices that differ in both data and capacity."""

from pa3dfl.api import resume, run
from pa3dfl.config import Config
from pa3dfl.errors import UserError

__all__ = ["Config", "UserError", "resume", "run"]
