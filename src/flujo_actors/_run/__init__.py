"""What every part of one run shares: its messages, its hooks and watchers, the calls of user code."""
