/* A process that ends itself: one thread waits, another writes to no memory, or aborts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile int waiting;

static void *wait_here(void *unused)
{
	prctl(PR_SET_NAME, "waiter");
	waiting = 1;
	pause();
	return unused;
}

__attribute__((noinline)) static int store(volatile int *place)
{
	*place = 1;
	return *place + 1;
}

__attribute__((noinline)) static int fall(volatile int *place)
{
	return store(place) * 2;
}

static void *crash(void *how)
{
	while (!waiting)
		usleep(1000);
	usleep(20000); /* until the other is in pause */
	if (strcmp(how, "abort") == 0)
		abort();
	return (void *)(long)fall(NULL);
}

int main(int count, char **words)
{
	pthread_t threads[2];
	pthread_create(&threads[0], NULL, wait_here, NULL);
	pthread_create(&threads[1], NULL, crash, count > 1 ? words[1] : "store");
	pause();
	return 0;
}
