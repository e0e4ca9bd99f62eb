"""Where tasks are computed: in this process, in a pool of processes, or on a Ray cluster."""
