"""Small models for anyformer whose data restrict their use or state no terms; see NOTICE.md."""
