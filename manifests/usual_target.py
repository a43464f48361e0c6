"""The default target of a conversion: the machine that runs it."""

import platform
import sys

from anespec.manifests.schema import Target


def usual_target() -> Target:
    """The Neural Engine of a Mac that has one; elsewhere a processor."""
    return Target.MAC if sys.platform == "darwin" and platform.machine() == "arm64" else Target.CPU
