"""Stand-ins for an AWS account and for environments in it; the README says what each is and what it is based on."""
