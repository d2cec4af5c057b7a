"""A wall clock that tests can move: a small library that programs load before libc, and a file that says how far."""

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;

__attribute__((constructor)) static void start(void) {
  int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
  ahead = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  int failed = syscall(SYS_clock_gettime, clock, t);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += *ahead;
  return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
"""


class Clock:
    def __init__(self, folder: Path) -> None:
        self.library, self.file = folder / "clock.so", folder / "clock.ahead"
        (folder / "clock.c").write_text(SOURCE)
        self.file.write_bytes(struct.pack("l", 0))
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.library), str(folder / "clock.c")]
        subprocess.run(words, check=True, capture_output=True)

    @staticmethod
    def why_not() -> str | None:
        return None if shutil.which("cc") else "moving the clock of a process needs a C compiler"

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCK_AHEAD": str(self.file)}

    def jump(self, seconds: int) -> None:
        """To so many seconds before or after the true time, at once in all processes that have this clock."""
        with self.file.open("r+b") as f:
            f.write(struct.pack("l", seconds))
