"""What is asked of the API server and of the syncers, for the decisions to be made from."""
