"""User-facing objects: `Flujo`, `RunClient`, `RunHandle`, and the wiring behind them."""
