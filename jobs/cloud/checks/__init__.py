"""What `spotmpi doctor` looks at: one file per theme, each with a tuple CHECKS of small functions."""
