"""Who may be told what, when: publisher confirms."""
