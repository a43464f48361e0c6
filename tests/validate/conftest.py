"""Lets the tests of this folder share their helpers, and keeps tiny models on one thread."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread for the length of a test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
