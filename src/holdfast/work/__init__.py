"""Running handlers: the worker, its processes, the sweeper, ordered queues."""
