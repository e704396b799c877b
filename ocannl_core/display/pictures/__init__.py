"""Pictures: graphs of expressions and kernels, and curves; as text, SVG, DOT and Mermaid."""
