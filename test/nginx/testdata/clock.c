/* A clock of the day that a test puts on or back. Loaded before libc (LD_PRELOAD), it adds the seconds in the file
 * that HEADGATE_TEST_CLOCK names, a signed number of 8 bytes, to the time of each call. Other clocks stay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void open_file(void)
{
    const char *name = getenv("HEADGATE_TEST_CLOCK");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);

    if (page != MAP_FAILED)
        offset = page;
    if (fd >= 0)
        close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);

    if (!real)
        real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    if (real(clock, t) != 0)
        return -1;
    if (offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += *offset;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;

    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
