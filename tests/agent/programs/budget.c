/* Spend the budgets of call sites, with a clock of the program's own.
 *
 *     budget THREADS CALLS SITES
 *
 * Threads call CALLS times from each of SITES sites; then again half a second later, and ten seconds
 * later. Prints the stacks that were taken each time, and the calls that were counted.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "budget.h"

#define RULE 3

static struct machtrace_budget budget;
static struct machtrace_stack_tree tree;
static unsigned long calls, sites;
static _Atomic unsigned long taken, most;
static _Atomic unsigned long taken_at[1 << 16];
static unsigned long counted, without_site;

static void *call(void *argument)
{
    for (unsigned long number = 0; number < calls * sites; number++) {
        unsigned long site = number % sites;
        taken_at[site] += machtrace_budget_take(&budget, &tree, MACHTRACE_TREE_ROOT, RULE,
                                                UINT64_C(0x400000) + site * 4);
    }
    return argument;
}

static void count(void *data, uint16_t rule, uint32_t node, uint64_t some)
{
    (void)data;
    if (rule != RULE)
        exit(1);
    *(node == MACHTRACE_TREE_ROOT ? &without_site : &counted) += some;
}

static void call_in_threads(int threads)
{
    pthread_t running[64];
    for (unsigned long site = 0; site < sites; site++)
        taken_at[site] = 0;
    for (int thread = 0; thread < threads; thread++)
        pthread_create(&running[thread], NULL, call, NULL);
    for (int thread = 0; thread < threads; thread++)
        pthread_join(running[thread], NULL);
    taken = most = 0;
    for (unsigned long site = 0; site < sites; site++) {
        taken += taken_at[site];
        most = taken_at[site] > most ? taken_at[site] : most;
    }
    machtrace_budget_drain(&budget, count, NULL);
}

int main(int argc, char **argv)
{
    const uint64_t second = 1000000000, start = 12345 * second;
    int threads = argc == 4 ? atoi(argv[1]) : 0;
    if (threads == 0 || machtrace_stack_tree_begin(&tree, 18) != 0)
        return 1;
    calls = strtoul(argv[2], NULL, 10);
    sites = strtoul(argv[3], NULL, 10);
    machtrace_budget_clear(&budget);
    const uint64_t times[] = {start, start + second / 2, start + 10 * second};
    for (int round = 0; round < 3; round++) {
        machtrace_budget_refill(&budget, times[round]);
        call_in_threads(threads);
        printf("taken%d %lu most%d %lu ", round, (unsigned long)taken, round, (unsigned long)most);
    }
    machtrace_budget_clear(&budget);
    printf("counted %lu without-site %lu after %d\n", counted, without_site,
           machtrace_budget_take(&budget, &tree, MACHTRACE_TREE_ROOT, RULE, 0x400000));
    return 0;
}
