"""The programs that batch scripts name, those too that wait in a queue since an earlier version wrote them."""
