"""Where the trio runtime meets everything else: asyncio loops, threads, and user code."""
