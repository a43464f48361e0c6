"""Choose the default target of a conversion: the machine on which it runs."""

import platform
import sys

from anespec.manifests.schema import Target


def usual_target() -> Target:
    """Return Target.MAC on a Mac with a Neural Engine, elsewhere Target.CPU."""
    return Target.MAC if sys.platform == "darwin" and platform.machine() == "arm64" else Target.CPU
