"""Another machine behind a bad network: its packets pass through this process, which delays and loses some.

The connection is a pair of TUN devices: one here, one in a network namespace. Not every kernel has `netem`.
"""

import contextlib
import fcntl
import os
import random
import struct
import threading
import time
from collections import deque

from other_machine import OtherMachine

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


class BadNetwork(OtherMachine):
    """`delay` in seconds and `loss` as a share, in each direction; both may change at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.delay, self.loss, self.passed, self.lost = 0.0, 0.0, 0, 0
        self._ends: list[int] = []

    def cut(self) -> None:
        self._ip("link", "set", self.cable[0], "down")

    def mend(self) -> None:
        self._ip("link", "set", self.cable[0], "up")

    def close(self) -> None:
        for end in self._ends:
            os.close(end)
        self._ends.clear()
        super().close()

    def _connect(self) -> None:
        for name in self.cable:
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
            self._ends.append(end)
        self._ip("link", "set", self.cable[1], "netns", self.name)
        here, there = self._ends
        for source, target in ((here, there), (there, here)):
            queue: deque[tuple[float, bytes]] = deque()
            for work in (self._take, self._give):
                threading.Thread(target=work, args=(source, target, queue), daemon=True).start()

    def _take(self, source: int, target: int, queue: deque[tuple[float, bytes]]) -> None:
        dice = random.Random(source)
        with contextlib.suppress(OSError):  # closed
            while True:
                try:
                    packet = os.read(source, 65536)
                except OSError:
                    os.fstat(source)
                    time.sleep(0.05)  # the line is cut
                    continue
                if dice.random() < self.loss:
                    self.lost += 1
                    continue
                self.passed += 1
                queue.append((time.monotonic() + self.delay, packet))

    def _give(self, source: int, target: int, queue: deque[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                os.fstat(target)
                if not queue or queue[0][0] > time.monotonic():
                    time.sleep(0.002)
                    continue
                with contextlib.suppress(OSError):  # the line is cut
                    os.write(target, queue.popleft()[1])
