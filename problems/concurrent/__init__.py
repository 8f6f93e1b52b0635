"""Problems with several causes, or one behind several symptoms."""
