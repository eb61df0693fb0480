"""One file for each detector family; `contract` says what a family is, `lookalikes` what is not decoded."""
