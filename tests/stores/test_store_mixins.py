"""The parts of the SQL stores: what one part needs from another is declared as abstract."""

import pytest

from flujo_actors.stores.postgres._maintenance import PostgresMaintenance
from flujo_actors.stores.postgres._run_queries import PostgresRunQueries
from flujo_actors.stores.sqlite._claims import SqliteClaims
from flujo_actors.stores.sqlite._maintenance import SqliteMaintenance


@pytest.mark.parametrize(
    ("part", "needed"),
    [
        (SqliteMaintenance, "_drop_texts.*_time"),
        (SqliteClaims, "_is_watched.*_stored.*_time"),
        (PostgresMaintenance, "_time.*_today"),
        (PostgresRunQueries, "_admit.*_append.*_stored.*_time"),
    ],
)
def test_a_store_without_a_method_that_a_part_needs_is_refused(part: type, needed: str) -> None:
    """A missing method raises when the store is made, not in its first call."""
    with pytest.raises(TypeError, match=f"abstract methods? .*{needed}"):
        part()
