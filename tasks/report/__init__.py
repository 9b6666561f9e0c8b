"""The report: measured beside published, as one self-contained page and as Markdown.

`outputs` reads stage outputs, `measured` and `significance` make the cells of a table, `figure_data` and
`figures_<paper>` the data of its figures (both run in the tables stage); `drawing`, `colour`, `page` and
`markdown` render what the tables stage wrote (`python -m tasks.report`).
"""
