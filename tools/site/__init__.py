"""What turns docs/ into the site: hooks of MkDocs and a formatter of equations. mkdocs.yml names them."""
