/* Waiting on a word in shared memory. */
#define _GNU_SOURCE
#include "calls.h"

#include <limits.h>
#include <linux/futex.h>
#include <time.h>

void post(volatile uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Returns when the word is another one, or after that time, or earlier. */
void wait_change(volatile uint32_t *word, uint32_t while_it_is, unsigned seconds)
{
    struct timespec bound = {.tv_sec = seconds};
    syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, &bound, NULL, 0);
}
