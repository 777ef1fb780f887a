"""Templates of blueprints: parser, compiler, filters and values."""
