"""The program that is started in place of Python: it asks the parent for a fork, passes on signals, and ends likewise.

It imports almost nothing, so it starts in a few milliseconds.
"""

import json
import os
import resource
import signal
import socket
import sys

SIZE = 8  # bytes of each number
PASSED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


def main() -> None:
    """Run the command in the arguments after the parent's address."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)  # until it is known where to send signals
    inherited = [int(name) for name in os.listdir("/proc/self/fd") if is_inherited(int(name))]
    ignored = [number for number in PASSED if signal.getsignal(number) is signal.SIG_IGN]
    asked = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "files": inherited,
        "ignored": ignored,
    }
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(sys.argv[1])
        socket.send_fds(parent, [len(text).to_bytes(SIZE, "big")], inherited)
        parent.sendall(text)
        pid = int.from_bytes(parent.recv(SIZE, socket.MSG_WAITALL), "big")
        for number in PASSED.difference(ignored):
            signal.signal(number, lambda told, _: os.kill(pid, told))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
        status = int.from_bytes(parent.recv(SIZE, socket.MSG_WAITALL), "big")
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in PASSED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def is_inherited(file: int) -> bool:
    """Return whether a file was open when this process started. Its own files are closed in its child processes."""
    try:
        return os.get_inheritable(file)
    except OSError:  # the file of the list itself
        return False


main()
