// A BCC program whose function's name does not say where it belongs: counts who is not the target.
BPF_PERCPU_ARRAY(hits, u64, 4);

int count_others(void *context)
{
    if ((bpf_get_current_pid_tgid() >> 32) == TARGET_PID)
        return 0;
    hits.increment(0);
    return 0;
}
