// A BCC program: opening a file fails for one command, and is counted.
#include <linux/fs.h>

BPF_ARRAY(hits, u64, 3);

LSM_PROBE(file_open, struct file *file)
{
    char comm[16] = {}, want[] = "victim";
    int denied = 0, seen = 1;

    hits.atomic_increment(seen);
    bpf_get_current_comm(&comm, sizeof(comm));
    for (int i = 0; i < sizeof(want); i++)
        if (comm[i] != want[i])
            return 0;
    hits.atomic_increment(denied);
    return -EACCES;
}
