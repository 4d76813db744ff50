"""Runs Python programs whose packages take a second or more to import: imports them once, and forks a process for each run.

    prefork.py serve                         forks for each connection to its stdin, a listening socket
    prefork.py run SOCKET PROGRAM [WORD]...  runs PROGRAM in such a fork, with the words, folder, variables and pipes of this process

PROGRAM is a script, or `-m` and a module. A run ends with its fork. The fork of a run that was killed is killed
at once. The server ends once its stdout has no reader, and all forks end with it.
"""

import marshal
import os
import socket
import sys

LENGTH_BYTES = 4
PIPES = (0, 1, 2)
PR_SET_PDEATHSIG = 1
# Modules that packages import at the first request.
LATER = ("anyio._backends._asyncio", "anyio._core._sockets", "httpcore", "httpcore2")


def run(path, words):
    """The status of the fork."""
    request = marshal.dumps((words, os.getcwd(), dict(os.environ)))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(request).to_bytes(LENGTH_BYTES, "big")], PIPES)
        server.sendall(request)
        # Output ends with its last copy.
        for pipe in PIPES:
            os.close(pipe)
        return (server.recv(1) or b"\1")[0]


def preload(program, is_script):
    """Imports what the program imports, but for files beside a script. A failed import fails again in the fork, which shows its error."""
    import ast
    import gc
    import importlib.util

    imports = [f"import {name}" for name in LATER]
    try:
        file = program if is_script else importlib.util.find_spec(f"{program}.__main__").origin
        with open(file, encoding="utf-8") as text:
            tree = ast.parse(text.read())
    except (OSError, ImportError, SyntaxError):
        return
    imports += [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    folder = sys.path[0] = os.path.dirname(file)
    for statement in imports:
        try:
            exec(statement, {})
        except Exception:
            pass
    for name, module in list(sys.modules.items()):
        beside = os.path.dirname(getattr(module, "__dict__", {}).get("__file__") or "") == folder
        if is_script and beside and name != "__main__":
            del sys.modules[name]
    gc.freeze()


class Run:
    def __init__(self, connection, child):
        self.connection, self.child, self.end = connection, child, os.pidfd_open(child)

    def close(self):
        self.connection.close()
        os.close(self.end)


class Server:
    def __init__(self):
        self.listener, self.runs, self.known = socket.socket(fileno=os.dup(0)), [], set()

    def serve(self):
        """Returns the words of a run, in that run's fork alone."""
        while True:
            ready = self.ready(None)
            if 1 in ready:
                self.end()
            self.settle(ready)
            if self.listener.fileno() in ready:
                connection, _ = self.listener.accept()
                # Ends the runs that were killed before this one began, so that their ports are free.
                self.settle(self.ready(0))
                words = self.fork(connection)
                if words:
                    return words

    def ready(self, limit):
        """The descriptors with an event."""
        import select

        poll = select.poll()
        poll.register(1, 0)
        poll.register(self.listener, select.POLLIN)
        for run in self.runs:
            poll.register(run.connection, select.POLLIN)
            poll.register(run.end, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(limit)}

    def settle(self, ready):
        """Kills the forks of killed runs, and ends the runs of ended forks."""
        for run in self.runs[:]:
            if run.end not in ready:
                if run.connection.fileno() not in ready:
                    continue
                os.kill(run.child, 9)
            status = os.waitstatus_to_exitcode(os.waitpid(run.child, 0)[1])
            try:
                run.connection.send(bytes([status if status >= 0 else 128 - status]))
            except OSError:
                pass  # The run was killed.
            run.close()
            self.runs.remove(run)

    def fork(self, connection):
        import ctypes

        length, pipes, *_ = socket.recv_fds(connection, LENGTH_BYTES, len(PIPES))
        request = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        try:
            words, folder, variables = marshal.loads(request)
        except (EOFError, TypeError, ValueError):
            words = None  # The run was killed before it had sent the whole request.
        if words:
            is_script = words[0] != "-m"
            program = os.path.join(folder, words[0]) if is_script else words[1]
            if program not in self.known:
                self.known.add(program)
                preload(program, is_script)
        prctl = ctypes.CDLL(None).prctl
        child = os.fork() if words else None
        if child != 0:
            for pipe in pipes:
                os.close(pipe)
            if child:
                self.runs.append(Run(connection, child))
            return None
        prctl(PR_SET_PDEATHSIG, 9)
        for run in self.runs:
            run.close()
        self.end_with(connection)
        self.listener.close()
        for pipe, number in zip(pipes, PIPES):
            os.dup2(pipe, number)
            os.close(pipe)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        return words

    def end_with(self, connection):
        """Has the kernel kill this fork as soon as its run has ended: the server may be at an import."""
        import fcntl

        self.run = connection
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETSIG, 9)
        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)

    def end(self):
        path = self.listener.getsockname()
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
        os._exit(0)


def execute(words):
    """The status of the program. Its process ends without freeing what it shares with the server, which takes long."""
    import runpy

    sys.argv = words
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
            runpy.run_path(words[0], run_name="__main__")
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


if sys.argv[1] == "run":
    status = run(sys.argv[2], sys.argv[3:])
else:
    server = Server()
    status = execute(server.serve())
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
os._exit(status)
