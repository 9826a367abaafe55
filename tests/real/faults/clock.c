/* Shifts the time of day by CLOCK_OFF_S seconds for programs that preload this library (LD_PRELOAD). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off_s(void) {
    const char *text = getenv("CLOCK_OFF_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = (int)syscall(SYS_clock_gettime, clock, now);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off_s();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int code = (int)syscall(SYS_gettimeofday, now, zone);
    if (code == 0) now->tv_sec += off_s();
    return code;
}

time_t time(time_t *copy) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (copy) *copy = now.tv_sec;
    return now.tv_sec;
}
