"""Forked gloo processes for tests. ``ranks(world, function, *args)`` returns what each rank's function returned.

A server process, started once, has imported everything and made no process group; each call forks its ranks from it,
which takes a second where starting each by a launcher takes half a minute. Rank functions are module-level functions
of test files, named "module:function"; the server imports that module before it forks. Arguments and results are
pickled.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]


class Ranks:
    def __init__(self, timeout: float = 600):
        self.timeout = timeout
        self.server: subprocess.Popen | None = None

    def __call__(self, world: int, function: Any, *args: Any, env: dict[str, str] | None = None):
        """Results by rank, None for a killed one; the traceback of one that failed is raised as RuntimeError."""
        if self.server is None:
            environment = os.environ | {
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "PYTHONPATH": ":".join(
                    map(str, [ROOT, SUPPORT.parent, *(room for room in SUPPORT.parent.iterdir() if room.is_dir())])
                ),
            }
            self.server = subprocess.Popen(
                [sys.executable, str(SUPPORT / "ranks.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environment, cwd=ROOT,
            )  # fmt: skip
        name = f"{function.__module__}:{function.__name__}"
        with tempfile.TemporaryDirectory() as folder:
            pickle.dump((world, name, args, env or {}, folder, self.timeout), self.server.stdin)
            self.server.stdin.flush()
            answer = self.server.stdout.readline()
            while answer and not answer.startswith(b"ranks done"):
                sys.stdout.write(answer.decode(errors="replace"))
                answer = self.server.stdout.readline()
            if not answer:
                raise RuntimeError("the server of ranks ended")
            results = []
            for rank in range(world):
                file = Path(folder, str(rank))
                kind, value = pickle.loads(file.read_bytes()) if file.exists() else ("killed", None)
                if kind == "failed":
                    raise RuntimeError(value)
                results.append(value)
            return results

    def close(self) -> None:
        if self.server is not None:
            self.server.stdin.close()
            self.server.wait()


def free_port() -> int:
    """Below the ports that the system gives to others, so that nobody gets it before the ranks meet there."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20_000, 32_000)
            probe.bind(("127.0.0.1", port))
            return port


def run_rank(rank: int, world: int, port: int, name: str, args: tuple, env: dict[str, str], folder: str) -> None:
    os.environ.update(env)
    if world > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    module, function = name.split(":")
    try:
        result = "done", getattr(importlib.import_module(module), function)(*args)
    except BaseException:
        result = "failed", f"rank {rank}: {traceback.format_exc()}"
    part = Path(folder, f".{rank}")
    part.write_bytes(pickle.dumps(result))
    part.rename(Path(folder, str(rank)))
    sys.stdout.flush()
    os._exit(0)


def serve() -> None:
    """Read calls from stdin, fork their ranks, say when they have ended."""
    sys.path.insert(0, str(SUPPORT))
    import time

    import torch

    torch.set_num_threads(1)
    import transformers.models.bert.modeling_bert
    import transformers.trainer  # noqa: F401

    import hf_focalcse.training.trainer  # noqa: F401

    with contextlib.suppress(ImportError):  # its first step imports torch's compiler, which takes seconds in each rank
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401

    known = set()
    while True:
        try:
            world, name, args, env, folder, timeout = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if (module := name.split(":")[0]) not in known:
            with contextlib.suppress(ImportError):  # the rank imports it again and says what is wrong
                importlib.import_module(module)
            known.add(module)
            gc.collect()
            gc.freeze()  # accelerate collects garbage at the end of each training: not among all that was imported
        port = free_port()
        children = {}
        for rank in range(world):
            child = os.fork()
            if child == 0:
                devnull = os.open(os.devnull, os.O_RDONLY)
                os.dup2(devnull, 0)
                os.dup2(2, 1)
                run_rank(rank, world, port, name, args, env, folder)
            children[child] = rank
        end, ended = time.monotonic() + timeout, False
        while children:
            child, status = os.waitpid(-1, os.WNOHANG)
            children.pop(child, None)
            ended |= os.WIFSIGNALED(status) or any(
                b"failed" in p.read_bytes()[:40] for p in Path(folder).glob("[0-9]*")
            )
            if ended or time.monotonic() > end:  # the others would wait for it
                for child in children:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        sys.stdout.buffer.write(b"ranks done\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
