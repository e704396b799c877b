"""Files that only the user can have written: private directories, and files with a digest."""
