"""Of several test processes, one compiles a loop, and the others load what Numba has stored."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from filelock import FileLock


@functools.cache
def compile_once() -> None:
    """Let this process wait while another one compiles the same loop, which takes seconds."""
    from numba.core.caching import FunctionCache
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_now = Dispatcher.compile

    def compile_alone(loop: Any, signature: Any) -> Any:  # noqa: ANN401 (Numba has no types)
        cache = loop._cache
        if not isinstance(cache, FunctionCache):
            return compile_now(loop, signature)
        lock = Path(cache._cache_path, f"{cache._impl.filename_base}.lock")
        # first the lock that all threads share: two of them may need the same loop
        with global_compiler_lock, FileLock(lock, is_singleton=True):
            return compile_now(loop, signature)

    Dispatcher.compile = compile_alone  # type: ignore[method-assign, assignment]  # there is no hook for it
