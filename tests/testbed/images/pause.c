/*
 * The process that does nothing: it holds namespaces open and reaps orphans.
 *
 * It is the pod sandbox's only process and also PID 1 of the cluster's own
 * namespaces. It ends on SIGTERM and SIGINT, which PID 1 gets only if it
 * handles them.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal_number)
{
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void leave(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

int main(void)
{
    struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
    struct sigaction on_end = {.sa_handler = leave};

    if (sigaction(SIGCHLD, &on_child, NULL) != 0 || sigaction(SIGTERM, &on_end, NULL) != 0 ||
        sigaction(SIGINT, &on_end, NULL) != 0) {
        return 1;
    }
    reap(SIGCHLD);
    for (;;) {
        pause();
    }
}
