"""Reports about records of runs: scores, tables, JSON, CSV and a page with plots."""
