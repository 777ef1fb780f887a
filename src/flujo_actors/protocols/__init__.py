"""Protocols of front ends: `ag_ui`, `mcp` and `sse`.

The first two need the extras `ag-ui` and `mcp`, `sse` the extra `page`.

Each loads its own library.
"""
