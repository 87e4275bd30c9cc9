/* Makes a program's clock two days slow, by LD_PRELOAD: stores refuse requests that are so old. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) time->tv_sec -= 2 * 24 * 3600;
    return failed;
}
