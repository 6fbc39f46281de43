"""Python processes that start in one second instead of five, because tests start many. In tests ``sys.executable`` is
a script that ends up here, in `stand_in`; ``COLD`` is the interpreter itself.

A server, started by the first such process of a test session, has imported the large libraries that do not read the
environment of Hugging Face (torch, scipy, pandas, pyarrow), and forks for each command. What comes from Hugging Face
and from this package is imported by each process itself, so that HF_HOME, HF_ENDPOINT and the like act as ever.
The process that was started stays as a stand-in: it hands over its folder, environment, mask and open files, passes
signals on, and ends as the fork ends; if it is killed, the fork is killed. Processes that the fork starts by its own
``sys.executable`` are of this kind too. Options of the interpreter, another environment where those libraries read it,
limits of resources and another user get an interpreter of their own.

``COLD`` is for tests of memory, of what an import loads, of sitecustomize, and of commands as the README has them.
"""

import contextlib
import fcntl
import os
import re
import shlex
import signal
import socket
import sys
import time

COLD = os.environ.get("FOCALCSE_TEST_PYTHON", sys.executable)
# Read while the libraries are imported, or by the interpreter when it starts.
READ_EARLY = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|LD|LC|MALLOC)_|LANG|TORCH_(LOGS|COMPILE)"
    r"|PYTHON(?!PATH$|UNBUFFERED$)"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def early(environment: dict) -> dict:
    coerced = ("LC_CTYPE", "C.UTF-8")  # which an interpreter gives itself where there is no locale
    return {name: value for name, value in environment.items() if READ_EARLY.match(name) and (name, value) != coerced}


def write_script(folder: str) -> str:
    """The script, whose server ends with this process and listens in that folder."""
    script = os.path.join(folder, "python")
    words = [sys.executable, "-IS", os.path.abspath(__file__), os.path.join(folder, "socket"), str(os.getpid())]
    with open(script, "w") as file:
        file.write(f'#!/bin/sh\nexec {shlex.join([*words, script, sys.executable])} "$@"\n')
    os.chmod(script, 0o755)
    return script


# ---- the stand-in


def stand_in(path: str, owner: str, script: str, python: str, argv: list[str]) -> None:
    import json

    options: list[str] = []
    while argv and argv[0] in ("-u", "-W"):
        size = 1 if argv[0] == "-u" else 2
        options, argv = options + argv[:size], argv[size:]
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-c", "-m")) or is_held(script):
        os.execv(python, [python, *options, *argv])
    connection = connect(path, [python, "-P", os.path.abspath(__file__), "--serve", path, owner, script])
    files = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != connection.fileno() and is_open(fd)]
    mask = os.umask(0)
    os.umask(mask)
    job = {"argv": argv, "options": options, "cwd": os.getcwd(), "umask": mask, "files": files}
    text = json.dumps(job | {"environment": dict(os.environ)}).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], files)
    connection.sendall(text)
    answer = connection.recv(1)
    if answer != b"y":  # the server has another environment
        os.execv(python, [python, *options, *argv])
    child = int.from_bytes(receive(connection, 8), "big")
    for number in SIGNALS:
        signal.signal(number, lambda got, frame: tell(child, got))
    for fd in files:  # a pipe ends when the fork closes it
        os.close(fd)
    try:
        status = int.from_bytes(receive(connection, 8), "big")
    except EOFError:
        os._exit(254)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def is_held(script: str) -> bool:
    """Whether this process may do less than the one that wrote the script, and so than the server's forks."""
    import resource

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS))
    return any(limit != resource.RLIM_INFINITY for limit in limits) or os.getuid() != os.stat(script).st_uid


def tell(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def connect(path: str, server: list[str]) -> socket.socket:
    """A connection to the server, which the first caller starts."""
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        connection.connect(path)
        return connection
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            connection.connect(path)
            return connection
        if os.fork() == 0:
            os.setsid()
            lock.close()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            os.closerange(3, 1024)
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            os.execve(server[0], server, environment)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                connection.connect(path)
                return connection
            time.sleep(0.05)
    raise TimeoutError("the server of warm processes did not start")


# ---- the server


def serve(path: str, owner: str) -> dict:
    """Fork for each connection; returns in the fork, with its job."""
    import gc
    import json
    import select

    mine = early(dict(os.environ))
    import_libraries()
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wake = os.pipe()  # the end of a fork wakes the server
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    while os.path.exists(f"/proc/{owner}"):
        ready = select.select([listener, woken, *forks.values()], [], [], 2)[0]
        if woken in ready:
            os.read(woken, 1024)
        for pid, connection in list(forks.items()):
            if connection in ready:  # the stand-in was killed
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if connection in ready else os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    connection.sendall(status.to_bytes(8, "big"))
                forks.pop(pid).close()
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        size, files, _, _ = socket.recv_fds(connection, 8, 253)
        job = json.loads(receive(connection, int.from_bytes(size, "big")))
        pid = 0
        if early(job["environment"]) != mine:
            connection.sendall(b"n")
        elif (pid := os.fork()) == 0:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (listener, connection, *forks.values()):
                other.close()
            os.close(woken)
            os.close(wake)
            return job | {"received": files}
        else:
            forks[pid] = connection
            connection.sendall(b"y" + pid.to_bytes(8, "big"))
        for fd in files:
            os.close(fd)
        if not pid:
            connection.close()
    os._exit(0)


def import_libraries() -> None:
    import jinja2  # noqa: F401
    import pandas  # noqa: F401
    import PIL.Image  # noqa: F401
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401
    import scipy.optimize
    import scipy.sparse
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import torch._dynamo
    import torch.distributed.tensor
    import torch.fx.experimental.symbolic_shapes
    import torch.nn.attention
    import torch.utils.data


# ---- the fork


def become(job: dict, script: str, paths: list[str]) -> None:
    """Take the place that the stand-in was given, and run its command as the interpreter would."""
    import random
    import runpy
    import types

    spare = 1 + max([*job["files"], *job["received"], 2])
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, spare) for fd in job["received"]]
    for fd in job["received"]:
        os.close(fd)
    for fd in {0, 1, 2} - set(job["files"]):
        with contextlib.suppress(OSError):
            os.close(fd)
    for fd, source in zip(job["files"], moved, strict=True):
        os.dup2(source, fd)
        os.close(source)
    os.umask(job["umask"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, file in enumerate(("stdin", "stdout", "stderr")):
        open_now = number in job["files"]
        stream = open(number, "r" if number == 0 else "w", closefd=False) if open_now else None  # noqa: SIM115
        if stream is not None and number:
            through = "-u" in job["options"] or bool(os.environ.get("PYTHONUNBUFFERED"))
            stream.reconfigure(
                write_through=through, line_buffering=number == 2 or stream.isatty(),
                errors="backslashreplace" if number == 2 else "strict",
            )  # fmt: skip
        setattr(sys, file, stream)
        setattr(sys, f"__{file}__", stream)
    if "-W" in job["options"]:
        import warnings

        warnings.simplefilter(job["options"][job["options"].index("-W") + 1])
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.executable = script
    argv = job["argv"]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = added + paths
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if argv[0] == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *argv[2:]]
        main.__dict__["__builtins__"] = __builtins__
        exec(compile(argv[1], "<string>", "exec"), main.__dict__)
    elif argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
        sys.argv[:] = argv
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        clean = list(sys.path)
        _, _, socket_path, owner_id, own_script = sys.argv
        become(serve(socket_path, owner_id), own_script, clean)
    else:
        stand_in(*sys.argv[1:5], sys.argv[5:])
