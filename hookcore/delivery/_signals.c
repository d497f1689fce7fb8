/* Notes a signal that ends this process, and lets the process live on for a moment, in which a thread sends the rest.
 *
 * Python can't do this: a handler of `signal.signal` runs between two instructions of the main thread, which may be
 * stuck in C for ever, and scripts and frameworks see that the signal has a handler. This one takes effect at once,
 * whatever any thread does, is invisible to `signal.getsignal`, and is gone as soon as the script sets its own.
 *
 * The handler is taken out by the kernel as it is called (SA_RESETHAND), so a second signal ends the process, and a
 * timer of the kernel sends the same signal again, so that nothing in this process can outlive it. Loaded with ctypes.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SIGNAL = 65 };

static volatile pid_t owner;
static volatile int told; /* the end of a pipe from which the thread reads */
static volatile int seconds;
static timer_t timers[MAX_SIGNAL];
static volatile char has_timer[MAX_SIGNAL];

static void note(int number) {
    if (getpid() != owner) { /* a fork: not ours to follow; the action is the default again */
        raise(number);
        return;
    }
    int before = errno;
    unsigned char byte = (unsigned char)number;
    struct itimerspec at = {{0, 0}, {seconds, 0}};
    timer_settime(timers[number], 0, &at, NULL);
    if (write(told, &byte, 1) != 1) {
        raise(number);
    }
    errno = before;
}

/* Note this signal if its action is the default one. Return whether it is noted now. */
__attribute__((visibility("default"))) int hookcore_note(int number, int pipe_end, int at_most_s) {
    struct sigaction now, ours;
    if (number < 1 || number >= MAX_SIGNAL || sigaction(number, NULL, &now) != 0) {
        return 0;
    }
    if (now.sa_handler != SIG_DFL) {
        return now.sa_handler == note && owner == getpid();
    }
    if (owner != getpid()) { /* timers don't survive a fork */
        memset((void *)has_timer, 0, sizeof has_timer);
        owner = getpid();
    }
    if (!has_timer[number]) {
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = number;
        if (timer_create(CLOCK_MONOTONIC, &event, &timers[number]) != 0) {
            return 0;
        }
        has_timer[number] = 1;
    }
    told = pipe_end;
    seconds = at_most_s;
    memset(&ours, 0, sizeof ours);
    sigemptyset(&ours.sa_mask);
    ours.sa_handler = note;
    ours.sa_flags = SA_RESETHAND | SA_NODEFER | SA_RESTART;
    return sigaction(number, &ours, NULL) == 0;
}

/* Let the signal act as by default again, unless the script has decided otherwise. */
__attribute__((visibility("default"))) void hookcore_leave(int number) {
    struct sigaction now;
    if (number >= 1 && number < MAX_SIGNAL && sigaction(number, NULL, &now) == 0 && now.sa_handler == note) {
        signal(number, SIG_DFL);
    }
}
