"""Published results of the papers (`registry`) and the rows of this project behind them (`row_map`)."""
