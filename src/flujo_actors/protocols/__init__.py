"""Runs for front ends that exist: `ag_ui` (extra `ag-ui`) and `mcp` (extra `mcp`). Each loads its own library."""
