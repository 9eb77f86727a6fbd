"""What an operator does with a record: check it, export contributions, compute payouts, watch it, pass on events.

- `folder_record`: a run or a federation, read and checked, in one form
- `check`: flags, exclusions, collapsed accuracy, a stalled federation
- `snapshot`: what `celm watch` shows
- `contributions`, `payout`, `model_export`: tables for finance, and the global model
- `alerts`, `metrics_text`: events for people, and metrics for Prometheus; `celm.flower` sends and writes them
"""
