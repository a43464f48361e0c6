"""llama.cpp as the peer: run passes and prompts through llama-cpp-python's C interface."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import llama_cpp
import numpy as np
from numpy.typing import NDArray

UBATCH = 512


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Discard llama.cpp's log, which it writes to standard error."""


class Peer:
    """A model in llama.cpp on the CPU, memory-mapped, with its KV cache in fp16."""

    def __init__(self, gguf: Path, threads: int, context: int) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model_options.use_mmap = True
        self._model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), model_options)
        if not self._model:
            raise SystemExit(f"{gguf}: llama.cpp cannot load this file")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = UBATCH
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._batch = llama_cpp.llama_batch_init(UBATCH, 0, 1)

    def forward(self, tokens: Sequence[int], position: int, *, all_logits: bool) -> NDArray[np.float32]:
        """Run `tokens` from `position` on; return logits (rows, vocabulary) of all rows or of the last.

        llama.cpp cannot take rows back out of a recurrent layer's state. There the tokens run behind all
        that ran before, which takes the same time as long as attention is a small part of a pass.
        """
        position = self.forget(position)
        last = len(tokens) - 1
        for lane, token in enumerate(tokens):
            self._batch.token[lane] = token
            self._batch.pos[lane] = position + lane
            self._batch.n_seq_id[lane] = 1
            self._batch.seq_id[lane][0] = 0
            self._batch.logits[lane] = all_logits or lane == last
        self._batch.n_tokens = len(tokens)
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code:
            raise SystemExit(f"llama.cpp could not run {len(tokens)} rows (code {code})")
        rows = len(tokens) if all_logits else 1
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(rows, self.vocabulary))

    def prefill(self, tokens: Sequence[int]) -> None:
        """Run a prompt from the start in the widest batches, with the logits of its last token."""
        for start in range(0, len(tokens), UBATCH):
            self.forward(tokens[start : start + UBATCH], start, all_logits=False)

    def forget(self, position: int) -> int:
        """Drop the cache from `position` on; return the position that follows what is kept."""
        if llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1):
            return position
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, 0)) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
