/* Stands before the C library: the wall clock shows what the file named by SHIFT says, in seconds, besides the true time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    long done = syscall(SYS_clock_gettime, id, at);
    const char *path = getenv("SHIFT");
    if (done == 0 && id == CLOCK_REALTIME && path != NULL) {
        FILE *file = fopen(path, "r");
        long shift = 0;
        if (file != NULL) {
            if (fscanf(file, "%ld", &shift) == 1) {
                at->tv_sec += shift;
            }
            fclose(file);
        }
    }
    return (int)done;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    if (done == 0) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return done;
}
