/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which calls a schedule picks. Plain C: a test compiles it for the machine it runs on. */
#pragma once
#include "rules.h"

static inline __u64 mixed(__u64 x)	/* splitmix64's finisher: Steele, Lea, Flood 2014 */
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Is call number `n` (from 0) of this rule one that bites? The number is drawn atomically, so the answer does not
 * depend on which processor asks. */
static inline bool scheduled(struct rule *rule, __u64 n, __u64 now)
{
	switch (rule->schedule) {
	case SCHEDULE_ALWAYS:
		return true;
	case SCHEDULE_PROBABILITY:
		return (mixed(rule->seed + n) >> 32) < rule->a;
	case SCHEDULE_EVERY:
		return rule->a && (n + 1) % rule->a == 0;
	case SCHEDULE_AFTER:
		return n >= rule->a;
	case SCHEDULE_FIRST:
		return n < rule->a;
	case SCHEDULE_BURST:
		return rule->a + rule->b && (now - rule->armed_ns) % (rule->a + rule->b) < rule->a;
	case SCHEDULE_RATIO:
		return rule->b && (n % rule->b + 1) * rule->a / rule->b != (n % rule->b) * rule->a / rule->b;
	}
	return false;
}
