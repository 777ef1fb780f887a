"""Operations on many stored runs: filters, totals, bulk actions."""
