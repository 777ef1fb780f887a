"""The pure core: values and decisions. Standard library, attrs and cattrs; no trio, no clock, no I/O."""
