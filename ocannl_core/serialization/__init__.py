"""Record as bytes and back: data only, for what is kept on disk and for keys."""
