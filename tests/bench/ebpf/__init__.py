"""`make bench-ebpf`: what system-call faults cost those who are no target, beside other mechanisms."""
