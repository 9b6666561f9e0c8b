"""Parts of a policy's run: its reward, solutions, hacking watch and proxies."""
