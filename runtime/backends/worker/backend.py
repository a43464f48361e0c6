"""The backend whose shards run in native workers."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from anespec.manifests.coreml_errors import known_error
from anespec.manifests.errors import AnespecError
from anespec.manifests.machine import system_build
from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.compiled import CompiledShard, compiled_shard, discard
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.build import built_worker
from anespec.runtime.backends.worker.crew import ShardRefusedError, WorkerLimits
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.stages import stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier
