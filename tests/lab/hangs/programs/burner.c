/* Uses all the processor time that it is given, until it is killed or its parent is gone. */
#include <signal.h>
#include <sys/prctl.h>

int main(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned spin = 0;; ++spin)
        ;
}
