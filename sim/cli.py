"""Command lines of the project's programs."""

import argparse
import errno
import math
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console

from sim.checkout import UnusableCheckoutError, check_checkout

BAD_ARGUMENTS = 2
INTERRUPTED = 128 + signal.SIGINT
MOST_SEED = (1 << 32) - 1
WIDE = 160
STDOUT = 1
READER_GONE = 128 + signal.SIGPIPE
LINE_S = 30.0
SWALLOWED_S = 1.0
"""After so long an interruption that has not ended anything will not do so any more."""

NOT_WRITABLE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser that answers bad arguments with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Prints one line to standard error and exits."""
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}\n")


def positive(text: str) -> int:
    """Type of an argument: a number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text!r}")
    return value


def seed(text: str) -> int:
    """Type of an argument: a seed."""
    # `int` takes more than digits: signs, spaces, underscores.
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_SEED):
        raise argparse.ArgumentTypeError(f"must be a number in 0..{MOST_SEED}, not {text!r}")
    return int(text)


def seeds(parser: Parser, first: int, count: int) -> range:
    """So many seeds from the first one on. They must exist, or a run could not be repeated."""
    if first + count - 1 > MOST_SEED:
        parser.error(f"argument --seed: {count} seeds from {first} on go beyond {MOST_SEED}")
    return range(first, first + count)


def add_campaign_arguments(parser: Parser, unit: str) -> None:
    """Adds the arguments of a program that does ``unit`` again and again with one seed after
    another: ``--seed``, ``--processes``, ``--keep-going``, ``--verbose``."""
    parser.add_argument("--seed", metavar="N", type=seed, default=1, help="default: 1")
    parser.add_argument(
        "--processes",
        metavar="N",
        type=positive,
        default=os.cpu_count() or 1,
        help=f"{unit}s at once (default: as many as processors)",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help=f"do not end with the first {unit} that fails"
    )
    parser.add_argument("--verbose", action="store_true", help=f"a line for every {unit}")


class Heartbeat:
    """Says now and then how far a long program is."""

    def __init__(self):
        self._last = time.monotonic()

    def print(self, line: str) -> None:
        """Prints the line, if the last one is `LINE_S` old."""
        now = time.monotonic()
        if now - self._last >= LINE_S:
            self._last = now
            print(line, flush=True)


def reason(error: Exception) -> str:
    """What is wrong, in words; of a file that cannot be used its name first."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def terminal() -> Console:
    """The console for tables. It is as wide as the terminal, or in a file as wide as the tables
    need."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def program(name: str, main: Callable[[], int], *, builds: bool = True) -> int:
    """The exit status of ``main``. An interruption, or a file that cannot be written, is reported
    in one line. So is a checkout in which nothing can be built, before ``main`` begins. Nothing is
    said if nobody reads the output any more."""
    try:
        if builds and not {"-h", "--help"} & set(sys.argv):
            check_checkout()
        return main()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except UnusableCheckoutError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            # What is still to be written as the interpreter ends would fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
            return READER_GONE
        if error.errno not in NOT_WRITABLE:
            raise
        print(f"{name}: {reason(error)}", file=sys.stderr)
        return BAD_ARGUMENTS


def reader_has_gone() -> bool:
    """Whether nobody reads standard output any more.

    If so, a pipe that broke is that one, and none to a program that this one has started.
    """
    output = select.poll()
    output.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes, which end at once when the block ends by an exception.

    Ctrl-C reaches every process of a terminal. The processes of the pool ignore it, and this
    process ends them. So none of them writes a traceback or begins its next task. A second Ctrl-C
    does not prevent that. One that comes while the processes are started waits until they have
    been: Python swallows an exception in the middle of a fork.
    """
    before = set(multiprocessing.active_children())
    interrupts = _Interrupts()
    handler = signal.signal(signal.SIGINT, interrupts.note)
    try:
        fork = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(count, mp_context=fork, initializer=ignore_interrupts)
        try:
            pool.submit(int)  # the first task starts all processes
            signal.signal(signal.SIGINT, interrupts.interrupt)
            if interrupts.noted:
                raise KeyboardInterrupt
            yield pool
        except BaseException:
            ignore_interrupts()
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            raise
        pool.shutdown()
    finally:
        signal.signal(signal.SIGINT, handler)


class _Interrupts:
    """What Ctrl-C does to a process that has a pool.

    It is an exception, and one more is none for `SWALLOWED_S`: the first is on its way out then,
    unless it came where Python swallows exceptions.
    """

    def __init__(self):
        self.noted = False
        self._last = -math.inf

    def note(self, *_) -> None:
        """A handler of signals that only takes note."""
        self.noted = True

    def interrupt(self, *_) -> None:
        """A handler of signals."""
        now = time.monotonic()
        if now - self._last > SWALLOWED_S:
            self._last = now
            raise KeyboardInterrupt


@contextmanager
def in_order(
    function: Callable[[Any], Any], items: Sequence[Any], count: int
) -> Iterator[Iterator[Any]]:
    """``function`` of each of ``items``, in this order, ``count`` at once. With more than one they
    are in processes of their own. Those that have not begun are dropped at the end."""
    if count == 1:
        yield map(function, items)
        return
    with processes(count) as executor:
        try:
            yield executor.map(function, items)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def ignore_interrupts() -> None:
    """From now on Ctrl-C does nothing to this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
