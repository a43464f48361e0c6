"""What is built for where nobody says: the machine that it is built on."""

import platform
import sys

from anespec.manifests.schema import Target


def usual_target() -> Target:
    """The Neural Engine of a Mac that has one; elsewhere a processor."""
    return Target.MAC if sys.platform == "darwin" and platform.machine() == "arm64" else Target.CPU
