"""Reports: self-contained HTML pages that need nothing but a browser. Pure: values in, text out."""
