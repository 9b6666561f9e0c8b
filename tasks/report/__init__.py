"""The report: measured beside published, as one self-contained page and as Markdown.

`outputs` reads stage outputs, `numbers` and `measured` make the cells of a table, `figures` draws what
`rlhf_core/published/figures` lists (all in the tables stage); `table`, `charts` and `page` render what it wrote
(`python -m tasks.report`).
"""
