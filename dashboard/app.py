"""The dashboard's entry: which pages there are, and what they have in common.

`atrex dashboard` starts it; the store comes on the command line, after ``--``. The pages do not lie
in a folder named `pages`: Streamlit would serve such files by itself, past this entry, to whoever
follows a link into a fresh server.
"""

from __future__ import annotations

import shell
import streamlit as st

PAGES = (
    st.Page("views/overview.py", title="Overview", default=True),
    st.Page("views/roofline.py", title="Roofline"),
    st.Page("views/operators.py", title="Operator"),
    st.Page("views/run.py", title="Run"),
)

st.set_page_config(page_title="atrex", layout="wide", menu_items={"About": None})
page = st.navigation(PAGES)
with st.sidebar:
    st.caption("Store")
    st.code(str(shell.store_path()), language=None, wrap_lines=True)
page.run()
