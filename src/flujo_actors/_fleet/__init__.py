"""The fleet: tickets, and the engines (job queues, task brokers) that carry them between machines."""
