"""Published results of the papers (`printed_tables`) and the rows of this project behind them (`row_map`)."""
