"""Core ML's protobuf classes, without importing the whole of coremltools.

`import coremltools` takes seconds and drags in torch; the classes generated from Apple's .proto
files are a self-contained package inside it, so that package alone is loaded, under a name of ours.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from anespec.manifests.packages import require_package

PACKAGE = "anespec._coreml_proto"


def model_classes() -> ModuleType:
    """The module with the class `Model` (Model.proto).

    Raises:
        MissingPackageError: coremltools is not installed.
    """
    if PACKAGE not in sys.modules:
        require_package("coremltools", "reading a shard")
        found = importlib.util.find_spec("coremltools")
        assert found is not None
        assert found.submodule_search_locations
        folder = Path(next(iter(found.submodule_search_locations))) / "proto"
        spec = importlib.util.spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.Model_pb2")
