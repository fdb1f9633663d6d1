"""Container images without docker: built with buildah, cached by their content, brought to the cluster as archives."""
