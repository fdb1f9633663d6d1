"""Running other programs, with an error that says which one failed and how.

Output is captured and shown only on failure, its last lines only. Callers that
pass a secret must hand it over in a file, never in an argument.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.errors import ClusterError

SHOWN_LINES = 20


def run(
    argv: Sequence[str | Path],
    *,
    doing: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    end_with_caller: bool = False,
) -> str:
    """Run `argv` and return its standard output.

    With `end_with_caller` the kernel ends the program when this process is
    killed, so that a long build cannot collide with the one that follows it
    (Linux only; elsewhere it is not ended).
    Raises ClusterError naming what was being done, with the program's last lines,
    if it is missing, fails, or takes longer than `timeout` seconds.
    """
    program = str(argv[0])
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if end_with_caller and shutil.which("setpriv") else []
    try:
        done = subprocess.run(
            [*guard, *(str(part) for part in argv)],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env=None if environment is None else dict(environment),
            cwd=cwd,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise ClusterError(f"{doing}: the program {program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{doing}: {program} took longer than {timeout:.0f} s") from None
    if done.returncode != 0:
        shown = [*done.stdout.splitlines()[-SHOWN_LINES:], *done.stderr.splitlines()[-SHOWN_LINES:]]
        tail = "\n".join(line for line in shown if line.strip())
        raise ClusterError(f"{doing}: {program} ended with status {done.returncode}:\n{tail}")
    return done.stdout
