"""What users declare: frozen values that can be shared by any number of concurrent runs."""
